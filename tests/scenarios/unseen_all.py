"""Importing it makes all the unseen trainings known: `unseen.SICK`, `unseen.HEALTHY`."""

import blind_healthy  # noqa: F401
import blind_healthy_models  # noqa: F401
import blind_sick  # noqa: F401
import blind_sick_models  # noqa: F401
import blind_sick_tasks  # noqa: F401
import fresh_healthy  # noqa: F401
import fresh_healthy_models  # noqa: F401
import fresh_sick  # noqa: F401
import fresh_sick_models  # noqa: F401
import novel_healthy  # noqa: F401
import novel_healthy_models  # noqa: F401
import novel_healthy_tasks  # noqa: F401
import novel_sick  # noqa: F401
import novel_sick_models  # noqa: F401
import novel_sick_tasks  # noqa: F401
import unseen_healthy  # noqa: F401
import unseen_healthy_models  # noqa: F401
import unseen_healthy_more  # noqa: F401
import unseen_healthy_tasks  # noqa: F401
import unseen_sick  # noqa: F401
import unseen_sick_models  # noqa: F401
import unseen_sick_more  # noqa: F401
import unseen_sick_tasks  # noqa: F401

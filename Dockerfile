# gradwatch's command line (and its monitor), and an MLflow server to review the runs on. No stage needs a GPU.
# compose.yaml puts them together: PostgreSQL, the server with logins, the monitor.
#
#   docker build --target cli    -t gradwatch .          docker run --rm -v "$PWD:/work" gradwatch report latest
#   docker build --target server -t gradwatch-mlflow .   docker run --rm -p 127.0.0.1:5000:5000 -v mlflow:/data gradwatch-mlflow

FROM python:3.12.13-slim-bookworm AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 MLFLOW_DISABLE_TELEMETRY=true
# The version of every package, of those that pip builds with too.
COPY scripts/constraints.txt /etc/gradwatch/constraints.txt
ENV PIP_CONSTRAINT=/etc/gradwatch/constraints.txt
RUN useradd --create-home --uid 1000 gradwatch

FROM base AS cli
# The CPU build of torch: reading and reporting need none, the demo runs on the CPU. What it needs is not taken from its index,
# which has other versions; the next line brings it.
RUN pip install --no-deps --index-url https://download.pytorch.org/whl/cpu torch==2.13.0
COPY pyproject.toml README.md LICENSE /src/
COPY gradwatch /src/gradwatch
COPY docs/findings /src/docs/findings
RUN pip install "/src[demo,service]"
USER 1000
WORKDIR /work
ENTRYPOINT ["gradwatch"]
CMD ["--help"]

FROM base AS server
RUN pip install "mlflow>=3.17.2" "flask-wtf>=1.2,<2" "psycopg2-binary>=2.9" && mkdir /data && chown gradwatch /data
COPY scripts/basic_auth.ini /etc/gradwatch/basic_auth.ini
USER 1000
WORKDIR /data
VOLUME /data
EXPOSE 5000
# One worker and no job consumers: 0.4 GiB instead of 2.5. Behind the published port only the names below are answered;
# publish it on the loopback address, or put a proxy with authentication in front.
ENV MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false MLFLOW_ENABLE_AI_GATEWAY=false
CMD ["mlflow", "server", "--host", "0.0.0.0", "--port", "5000", "--workers", "1", \
     "--allowed-hosts", "localhost:5000,127.0.0.1:5000", \
     "--backend-store-uri", "sqlite:////data/mlflow.db", "--serve-artifacts", "--artifacts-destination", "/data/artifacts"]

"""TRL's SFTTrainer under the Transformers callback: what it logs of the gradients is what is recorded."""

import numpy as np
import pytest
import torch

from gradwatch import open_history

pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
from trl import SFTConfig, SFTTrainer  # noqa: E402

from gradwatch.adapters.transformers import GradWatchCallback  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_accelerator")
WORDS = [f"w{i}" for i in range(30)]


def tokenizer():
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<end>", *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


def train(tmp_path, *callbacks):
    torch.manual_seed(0)
    size = {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **drop, bos_token_id=1, eos_token_id=1))
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(len(WORDS), (24, 10), generator=generator).tolist()
    data = datasets.Dataset.from_dict({"text": [" ".join(WORDS[i] for i in row) for row in rows]})
    settings = SFTConfig(
        output_dir=str(tmp_path / "out"), report_to="none", use_cpu=True, disable_tqdm=True, logging_steps=1,
        bf16=False, save_strategy="no", per_device_train_batch_size=4, max_steps=6, learning_rate=0.01,
    )  # fmt: skip
    trainer = SFTTrainer(model, args=settings, train_dataset=data, processing_class=tokenizer(), callbacks=[*callbacks])
    trainer.train()
    return model, [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]


def test_the_norms_are_those_that_trl_logs_and_it_trains_as_without(tmp_path):
    bare, _ = train(tmp_path / "bare")
    model, logged = train(tmp_path / "watched", GradWatchCallback(log=None, dir=tmp_path / "runs"))
    (run,) = (tmp_path / "runs").iterdir()
    history = open_history(run)
    assert len(logged) == 6
    np.testing.assert_allclose(history.total("grad_norm") / history.total("user_clip_coef"), logged, rtol=1e-5)
    assert all(map(torch.equal, model.parameters(), bare.parameters()))

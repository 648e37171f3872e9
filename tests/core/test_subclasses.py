"""Models that users write: the same class for the reference and for this library gives the same numbers and the same files."""

from __future__ import annotations

import copy
import importlib
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as reference
from safetensors import safe_open
from torch import nn
from torch.nn import functional as F

import transept
from transept.errors import InputError, TranseptWarning, UnsupportedError

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SIZES |= {"vocab_size": 40, "max_position_embeddings": 32}
IDS = torch.tensor([[2, 5, 6, 7], [2, 8, 9, 1]])
LABELS = torch.tensor([0, 1])


def pairs(lib: Any) -> Any:
    class BertForPairs(lib.BertPreTrainedModel):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.bert = lib.BertModel(config, add_pooling_layer=False)
            self.dropout = nn.Dropout(config.hidden_dropout_prob)
            self.classifier = nn.Linear(config.hidden_size, config.num_labels)
            self.post_init()

        def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **kwargs: Any) -> Any:
            outputs = self.bert(input_ids, attention_mask=attention_mask)
            logits = self.classifier(self.dropout(outputs[0][:, 0]))
            loss = None if labels is None else F.cross_entropy(logits, labels)
            return lib.modeling_outputs.SequenceClassifierOutput(loss=loss, logits=logits)

    return BertForPairs


def doubled(lib: Any) -> Any:
    class Doubled(lib.BertForSequenceClassification):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.classifier = nn.Linear(self.classifier.in_features, 3)
            self.gate = nn.Linear(3, 3)
            self.post_init()

        def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
            output = super().forward(input_ids, attention_mask=attention_mask)
            logits = self.gate(output.logits)
            return (logits,) if labels is None else (2 * F.cross_entropy(logits, labels), logits)

    return Doubled


def causal(lib: Any, ties: Any = None) -> Any:
    class Writer(lib.LlamaPreTrainedModel, lib.GenerationMixin):  # type: ignore[misc]
        _tied_weights_keys = ties

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = lib.LlamaModel(config)
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(
            self,
            input_ids: Any = None,
            attention_mask: Any = None,
            position_ids: Any = None,
            past_key_values: Any = None,
            labels: Any = None,
            use_cache: Any = None,
            **kwargs: Any,
        ) -> Any:
            inputs = {"attention_mask": attention_mask, "position_ids": position_ids, "use_cache": use_cache}
            outputs = self.model(input_ids, past_key_values=past_key_values, **inputs)
            logits = self.lm_head(outputs.last_hidden_state)
            loss = None if labels is None else self.loss_function(logits, labels, vocab_size=self.config.vocab_size)
            kind = lib.modeling_outputs.CausalLMOutputWithPast
            return kind(loss=loss, logits=logits, past_key_values=outputs.past_key_values)

    return Writer


def around(lib: Any, family: str, path: str, name: str) -> Any:
    class Around(getattr(lib, f"{family}PreTrainedModel")):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            setattr(self, path, getattr(lib, name)(config))
            self.probe = nn.Linear(16, 2)
            self.post_init()

        def forward(self, **inputs: Any) -> Any:
            return (self.probe(getattr(self, path)(**inputs)[0]),)

    return Around


class BertForPairs(pairs(transept)):  # type: ignore[misc]
    """A class that pickle can import."""


def names_in(directory: Path) -> set[str]:
    with safe_open(directory / "model.safetensors", "pt") as file:
        return {*file.keys()}


def bert(lib: Any = transept, **settings: Any) -> Any:
    return lib.BertConfig(**SIZES, **settings)


def both(make: Any, config: Any, tmp_path: Path) -> tuple[Any, Any]:
    """The model of the reference, and ours of its files, which are written back and compared."""
    torch.manual_seed(0)
    theirs = make(reference)(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = make(transept).from_pretrained(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    assert names_in(tmp_path / "ours") == names_in(tmp_path / "theirs")
    again = make(reference).from_pretrained(tmp_path / "ours")
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, theirs.state_dict()[name]), name
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    return ours, theirs


@pytest.mark.parametrize("make", [pairs, doubled])
def test_the_same_class_gives_the_same_numbers(make: Any, tmp_path: Path) -> None:
    ours, theirs = both(make, bert(reference), tmp_path)
    one, other = ours(IDS, labels=LABELS), theirs(IDS, labels=LABELS)
    torch.testing.assert_close(one[0], other[0])
    torch.testing.assert_close(one[1], other[1])
    one[0].backward()
    other[0].backward()
    for (name, mine), (_, wanted) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        if wanted.grad is not None:
            torch.testing.assert_close(mine.grad, wanted.grad, msg=name)


_VIT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 8}
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "vocab_size": 40}
_WAVES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
_WAVES |= {"conv_dim": (8, 8), "conv_kernel": (4, 4), "conv_stride": (2, 2), "num_conv_pos_embeddings": 4}
_WAVES |= {"num_conv_pos_embedding_groups": 2}


@pytest.mark.parametrize(
    ("family", "path", "settings", "inputs"),
    [
        ("ViT", "vit", _VIT | {"patch_size": 4}, {"pixel_values": torch.randn(1, 3, 8, 8)}),
        ("T5", "transformer", _T5, {"input_ids": IDS, "decoder_input_ids": IDS}),
        ("Wav2Vec2", "wav2vec2", _WAVES, {"input_values": torch.randn(1, 100)}),
        ("GPT2", "transformer", {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 40}, {"input_ids": IDS}),
    ],
)
def test_other_families(family: str, path: str, settings: dict[str, Any], inputs: dict[str, Any], tmp_path: Path) -> None:
    def make(lib: Any) -> Any:
        return around(lib, family, path, f"{family}Model")

    ours, theirs = both(make, getattr(reference, f"{family}Config")(**settings), tmp_path)
    torch.testing.assert_close(ours(**inputs)[0], theirs(**inputs)[0], rtol=1e-4, atol=1e-5)


def test_checkpoints_of_the_backbone_and_of_tasks_are_read(tmp_path: Path) -> None:
    transept.BertForMaskedLM(bert()).save_pretrained(tmp_path / "task")
    backbone = transept.BertModel(bert())
    backbone.save_pretrained(tmp_path / "backbone")
    for kind in ("task", "backbone"):
        with pytest.warns(TranseptWarning, match="newly initialised.*: classifier.weight, classifier.bias"):
            model = BertForPairs.from_pretrained(tmp_path / kind, num_labels=5)
        assert model.load_report.missing == ["classifier.weight", "classifier.bias"]
        assert model.classifier.out_features == 5
        assert 0.01 < model.classifier.weight.std() < 0.03
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, backbone.embeddings.word_embeddings.weight)
    alone = transept.BertModel.from_pretrained(save(model, tmp_path), add_pooling_layer=False)
    assert torch.equal(alone(IDS)[0], backbone.eval()(IDS)[0])


def test_what_a_class_adds_may_be_absent_as_a_whole(tmp_path: Path) -> None:
    class Deeper(transept.BertModel):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.extra = nn.Linear(16, 16)
            self.post_init()

    class Two(BertForPairs):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.others = nn.ModuleList([transept.BertModel(config, add_pooling_layer=False)])
            self.scale = nn.Parameter(torch.ones(1))

    backbone = transept.BertModel(bert())
    backbone.save_pretrained(tmp_path)
    for kind in (Deeper, Two):
        with pytest.warns(TranseptWarning, match="newly initialised"):
            model = kind.from_pretrained(tmp_path)
        again = kind.from_pretrained(save(model, tmp_path))
        assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    others = [name for name in model.load_report.missing if name.startswith("others.0.")]
    assert len(others) == len(backbone.state_dict()) - 2  # the pooler


def save(model: Any, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def test_modules_are_initialised_when_the_constructor_says_so() -> None:
    called = []

    class Model(transept.BertPreTrainedModel):  # type: ignore[name-defined, misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.bert = transept.BertModel(config)
            self.first, self.second = nn.Linear(400, 4), nn.Linear(4, 4)
            self.post_init()
            self.second.weight.data.fill_(3.0)

        def _init_weights(self, module: nn.Module) -> None:
            super()._init_weights(module)
            called.append(module)

    model = Model(bert())
    assert 0.01 < model.first.weight.std() < 0.03
    assert not model.first.bias.any()
    assert (model.second.weight == 3).all()
    assert model.first in called
    assert model.bert.pooler not in called  # which has a model of its own


def test_subclasses_of_tasks_find_what_is_built_and_replace_it() -> None:
    class Frozen(transept.BertForSequenceClassification):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.bert.encoder.layer[0].requires_grad_(False)
            self.kept = self.classifier.weight.detach().clone()
            self.classifier.bias.data.fill_(2.0)
            self.post_init()

    model = Frozen(bert())
    assert torch.equal(model.kept, model.classifier.weight)
    assert (model.classifier.bias == 2).all()
    assert not model.bert.encoder.layer[0].attention.self.query.weight.requires_grad


def test_configs_and_auto_classes_of_users(tmp_path: Path) -> None:
    class PairsConfig(transept.BertConfig):
        model_type = "bert-of-pairs"

    class Pairs(BertForPairs):
        config_class = PairsConfig

    transept.AutoConfig.register("bert-of-pairs", PairsConfig, exist_ok=True)
    transept.AutoModel.register(PairsConfig, Pairs, exist_ok=True)
    model = Pairs(PairsConfig(**SIZES))
    assert type(transept.AutoModel.from_pretrained(save(model, tmp_path))) is Pairs


def test_what_every_model_can_do_these_can_too() -> None:
    model = BertForPairs(bert())
    assert isinstance(model, transept.PreTrainedModel)
    assert model.base_model is model.bert
    assert model.main_input_name == "input_ids"
    model.set_attn_implementation("eager")
    assert model.bert.kernel_name == "eager"
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    assert model.resize_token_embeddings(50) is model.bert.embeddings.word_embeddings
    assert model.config.vocab_size == 50
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(other.eval()(IDS).logits, model.eval()(IDS).logits)


TIES = {"lm_head.weight": "model.embed_tokens.weight"}
LLAMA = SIZES | {"tie_word_embeddings": True, "num_key_value_heads": 1}


def test_causal_models_generate(tmp_path: Path) -> None:
    ours, theirs = both(lambda lib: causal(lib, TIES), reference.LlamaConfig(**LLAMA), tmp_path)
    torch.testing.assert_close(ours(IDS, labels=IDS).loss, theirs(IDS, labels=IDS).loss)
    for options in ({}, {"num_beams": 3}):
        mine = ours.generate(IDS, max_new_tokens=5, do_sample=False, **options)
        assert torch.equal(mine, theirs.generate(IDS, max_new_tokens=5, do_sample=False, pad_token_id=0, **options))


@pytest.mark.parametrize("ties", [TIES, ["lm_head.weight"]])
def test_ties_are_kept(ties: Any, tmp_path: Path) -> None:
    model = causal(transept, ties)(transept.LlamaConfig(**LLAMA))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "lm_head.weight" not in names_in(save(model, tmp_path))
    model.resize_token_embeddings(48)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.out_features == 48
    with pytest.raises(InputError, match="names 'head.weight', which is no tensor of it"):
        causal(transept, {"head.weight": "model.embed_tokens.weight"})(transept.LlamaConfig(**LLAMA))


@pytest.mark.parametrize("base", [BertForPairs, transept.BertForSequenceClassification])
def test_what_the_constructor_alone_knows_survives_loading(base: Any, tmp_path: Path) -> None:
    class Weighted(base):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.register_buffer("weights", torch.tensor([1.0, 2.0]), persistent=False)
            self.register_buffer("numbers", torch.arange(3))
            self.scale = nn.Parameter(torch.full((2,), 5.0))
            self.post_init()

    transept.BertModel(bert()).save_pretrained(tmp_path)
    with pytest.warns(TranseptWarning):
        model = Weighted.from_pretrained(tmp_path, dtype="bfloat16")
    assert model.weights.tolist() == [1.0, 2.0]
    assert model.numbers.tolist() == [0, 1, 2]
    assert model.scale.tolist() == [5.0, 5.0]
    assert model.scale.dtype is torch.bfloat16
    assert model.scale.requires_grad
    model.scale.data.fill_(7.0)
    assert Weighted.from_pretrained(save(model, tmp_path)).scale.tolist() == [7.0, 7.0]


def test_names_that_models_have_are_refused() -> None:
    class Taken(transept.PreTrainedModel):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.body = nn.Linear(2, 2)

    with pytest.raises(UnsupportedError, match="`body` of Taken would hide"):
        Taken(bert())


def test_models_without_ours_inside(tmp_path: Path) -> None:
    class Plain(transept.PreTrainedModel):
        config_class = transept.BertConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.layer = nn.Linear(config.hidden_size, 2)
            self.post_init()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.layer(x)
            return y

    model = Plain(bert())
    again = Plain.from_pretrained(save(model, tmp_path))
    assert torch.equal(again(torch.ones(1, 16)), model(torch.ones(1, 16)))
    assert 0.01 < model.layer.weight.std() < 0.03


@pytest.mark.parametrize("make", [pairs, doubled])
def test_they_are_trained_by_their_own_loss(make: Any, tmp_path: Path) -> None:
    rows = [{"input_ids": [2, 3, 4, 5 + i], "labels": i % 2} for i in range(8)]
    kind = make(transept)
    model = kind(bert(hidden_dropout_prob=0.0))
    args = transept.TrainingArguments(
        *(str(tmp_path),), num_train_epochs=1, per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True
    )
    trainer = transept.Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    ids, labels = torch.tensor([row["input_ids"] for row in rows]), torch.tensor([row["labels"] for row in rows])
    with torch.no_grad():
        output = model.eval()(ids, labels=labels)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(output[0]), rel=1e-5)
    torch.testing.assert_close(torch.from_numpy(trainer.predict(rows).predictions), output[1])
    trainer.save_model(str(tmp_path / "saved"))
    torch.testing.assert_close(kind.from_pretrained(tmp_path / "saved")(ids)[0], model(ids)[0])


_OTHERWISE = {"DepthAnythingPreTrainedModel", "TrOCRPreTrainedModel", "DPRPreTrainedModel"}  # whose backbone has another name


def test_every_family_has_a_class_to_derive_from() -> None:
    names = [name for name in dir(reference) if name.endswith("PreTrainedModel") and hasattr(transept, name)]
    assert len(names) > 50
    for name in {*names} - _OTHERWISE - {"PreTrainedModel"}:
        ours, theirs = getattr(transept, name), getattr(reference, name)
        assert ours.base_model_prefix == theirs.base_model_prefix
        assert ours.main_input_name == theirs.main_input_name
        assert ours.config_class.__name__ == theirs.config_class.__name__


def test_models_are_instances_of_the_class_of_their_family() -> None:
    from transept.models.bert.modeling_bert import BertPreTrainedModel as Same

    from transept.models.bert import BertPreTrainedModel

    assert BertPreTrainedModel is Same is transept.BertPreTrainedModel  # type: ignore[attr-defined]
    assert issubclass(transept.BertForMaskedLM, BertPreTrainedModel)
    assert issubclass(transept.BertModel, transept.PreTrainedModel)
    assert not issubclass(transept.RobertaModel, BertPreTrainedModel)
    assert not issubclass(nn.Linear, transept.PreTrainedModel)


@pytest.mark.parametrize(
    ("family", "kinds", "settings"),
    [
        ("Bert", ("Layer", "Attention"), SIZES),
        ("Llama", ("DecoderLayer", "Attention", "MLP"), SIZES),
        ("GPT2", ("Block", "Attention", "MLP"), {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 40}),
        ("T5", ("Block", "Attention"), _T5),
        ("ViT", ("Layer", "Attention", "MLP"), _VIT | {"patch_size": 4}),
    ],
)
def test_classes_of_layers_match_where_the_references_do(family: str, kinds: Any, settings: dict[str, Any]) -> None:
    paths = []
    for lib in (transept, reference):
        model: Any = getattr(lib, f"{family}Model")(getattr(lib, f"{family}Config")(**settings))
        file = importlib.import_module(f"{lib.__name__}.models.{family.lower()}.modeling_{family.lower()}")
        classes = [getattr(file, family + kind) for kind in kinds]
        paths.append([{path for path, part in model.named_modules() if isinstance(part, kind)} for kind in classes])
    assert paths[0] == paths[1]


def test_layers_are_named_as_what_is_not_split() -> None:
    assert transept.LlamaModel(transept.LlamaConfig(**SIZES))._no_split_modules == [transept.LlamaDecoderLayer.__name__]  # type: ignore[attr-defined]
    for name in ("SwinLayer", "BlipEncoderLayer", "BertCrossAttention"):
        with pytest.raises((AttributeError, ImportError), match="has no name"):
            getattr(transept, name)

"""What every family must do, derived from its one line in `families/`.

Errors are max|difference| / max|reference|: 1e-5 in float32, where both round at every step; 1e-10 in float64, where only a
difference in the mathematics can show, or 1e-6 where the reference drops to float32. Of a model that is saved, loaded, pickled or
copied, files, weights and buffers are equal bit for bit, and results to rounding (`REPEATED` in the harness).
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.report import count, note
from tests.thorough import crossed, in_turn
from transept.core.model import Backbone, Model
from transept.heads.depth import ForDepthEstimation
from transept.layers.caches.cache import DynamicCache
from transept.layers.caches.rows import RowCaches
from transept.objectives.terms import total
from transept.training.objective import counts_of

from .families import FAMILIES, Family
from .harness import (
    BACKBONES,
    DOUBLE,
    EVERY,
    FIRST,
    MOST_USED,
    READERS,
    REPEATED,
    ROUNDED,
    SINGLE,
    TASKS,
    USED,
    batch,
    check_same,
    classes,
    compare,
    decodes,
    doubled,
    equal,
    error,
    gradients,
    labels,
    noise_of,
    originals,
    pair,
    reference_class,
    shallow,
    stored,
    takes_cache,
    whole_loss,
)
from .pictures import of_row
from .seq2seq import step

# Two orders of summation in float64.
EXACT = 1e-12

# The reference warns of its own past whenever an encoder–decoder of two models is given labels.
pytestmark = [
    pytest.mark.reference,
    pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning"),  # of its WavLM
]


@pytest.fixture(autouse=True)
def _exemptions(request: pytest.FixtureRequest) -> None:
    """Leave out what a family's line says cannot hold."""
    values = getattr(request.node, "callspec", None)
    family = values and values.params.get("family")
    if family and request.function.__name__ in family.exempt:
        pytest.skip(family.exempt[request.function.__name__])


def test_exemptions_are_of_tests_that_exist() -> None:
    assert {name for family in FAMILIES for name in family.exempt} <= set(globals())


def _see(family: Family, attentions: bool = False) -> dict[str, bool]:
    shown = attentions and not family.averages_heads
    return {"output_hidden_states": True} | ({"output_attentions": True} if shown else {})


# Classes whose outputs have no cache in the reference, which keeps states on the model.
WITHOUT_CACHE = ("RecurrentGemmaModel", "RecurrentGemmaForCausalLM")


def _without_cache(kind: type) -> dict[str, Any]:
    return {"use_cache": False} if kind.__name__ in WITHOUT_CACHE else {}


def _run(model: Any, inputs: dict[str, Any]) -> Any:
    with torch.no_grad():
        return model(**_without_cache(type(model)) | inputs)


FORMS = [pytest.param(pad, kernel, id=f"{pad}-{kernel}") for pad in ("right", "left", "none") for kernel in ("eager", "sdpa")]


@pytest.mark.parametrize(("family", "cls", "pad", "kernel"), crossed(EVERY, FORMS, 350, whole=USED))
def test_equals_reference(family: Family, cls: type[Model], pad: str, kernel: str) -> None:
    if family.reads_padding and pad != "none":
        return
    inputs = batch(family, cls, pad=pad)
    if pad != "right" and equal(inputs, batch(family, cls, pad="right")):
        return  # what is not padded on one side or the other
    ours, theirs = pair(family, cls, attention=kernel)
    only = inputs["attention_mask"] if decodes(ours) and pad == "left" and "attention_mask" in inputs else None
    more = _see(family, attentions=kernel == "eager")
    if kernel == "eager" and only is not None:
        more = _see(family)  # weights of rows that attend to nothing are not compared
    labelled = inputs | labels(family, cls, inputs)
    if decodes(ours) and takes_cache(cls):
        labelled["use_cache"] = False  # ours makes no cache beside a loss unless asked for one
    # Losses count padding on the left, which sees nothing: there kernels differ, and the reference's first GPTs see something.
    first_gpts = family.model_type in ("gpt_neo", "openai_gpt")
    unlike = pad == "left" and (first_gpts or theirs.config._attn_implementation != kernel)
    if unlike and "mc_token_ids" in inputs:
        inputs["mc_token_ids"][:] = inputs["attention_mask"].shape[-1] - 1  # a real token of each choice
    for given in (inputs,) if unlike else (inputs, labelled):
        compare(_run(ours, given | more), _run(theirs, given | more), SINGLE, only=only)


# Every family, and of its classes those whose turn it is.
@pytest.mark.parametrize(("family", "cls"), in_turn(EVERY, 150, whole=[*FIRST, *USED]))
def test_equals_reference_in_double(family: Family, cls: type[Model], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pair(family, cls)
    inputs = batch(family, cls)
    inputs = doubled(inputs)
    if family.model_type == "xglm":
        monkeypatch.setattr(torch, "full", partial(torch.full, dtype=torch.float64))  # its smallest score
    if family.model_type == "fsmt":
        smallest = partial(torch.full_like, fill_value=torch.finfo(torch.float64).min)  # which the reference puts into float32
        monkeypatch.setattr("transformers.models.fsmt.modeling_fsmt.fill_with_neg_inf", smallest)
    mine, other = _run(ours.double(), inputs), _run(theirs.double(), inputs)
    compare(mine, other, ROUNDED if cls.__name__ in family.rounded else DOUBLE)
    given = labels(family, cls, inputs)
    given = doubled(given) if "pixel_mask" in inputs else given
    if given:  # some of the reference's losses drop to float32
        mine = whole_loss(_run(ours, inputs | given))
        if "pixel_mask" in inputs:
            monkeypatch.setattr(torch, "ones", partial(torch.ones, dtype=torch.float64))  # its weights of classes
        found = error(mine, whole_loss(_run(theirs, inputs | given)))
        note("loss", found)
        assert found <= ROUNDED


@pytest.mark.parametrize(("family", "cls"), in_turn(TASKS, 100, whole=USED))
def test_gradients_equal_reference(family: Family, cls: type[Model]) -> None:
    ours, theirs = pair(family, cls)
    inputs = batch(family, cls)
    inputs |= labels(family, cls, inputs)
    expected = ours.checkpoint_names().keys
    mine = gradients(ours, whole_loss(ours(**inputs)))
    theirs_by_name = gradients(theirs, whole_loss(theirs(**inputs)))
    largest = max(float(gradient.norm()) for gradient in theirs_by_name.values())
    # The reference names some modules otherwise than it stores them.
    theirs_as_stored = {name: theirs_by_name[own] for name, own in ours.checkpoint_names().canonical(theirs_by_name).items()}
    state = dict(ours.state_dict())
    ties = ours.checkpoint_names().tied
    compared = 0
    for name, gradient in mine.items():
        recipe = expected.recipe(name)
        if name in ties or (recipe.stored not in theirs_as_stored and name not in theirs_by_name):
            continue
        if recipe.stored in theirs_as_stored:
            other = recipe.take(theirs_as_stored[recipe.stored], recipe.lengths(state))
        else:  # what files have as one tensor, and the reference as several
            other = theirs_by_name[name]
        least = noise_of(cls, name, gradient) / 1e-4
        found = float((gradient - other).norm()) / max(float(other.norm()), 1e-3 * largest, least)
        note("gradients", found)
        assert found <= 1e-4, name
        compared += 1
    fixed = {name for name, parameter in theirs.named_parameters() if not parameter.requires_grad}
    fixed = set(ours.checkpoint_names().canonical(fixed))  # the reference trains less of a backbone within
    assert compared >= 0.9 * len([name for name in mine if expected.recipe(name).stored not in fixed])


@pytest.mark.parametrize(("family", "cls"), in_turn(TASKS, 100, whole=USED, start=1))
def test_every_parameter_gets_a_gradient(family: Family, cls: type[Model]) -> None:
    ours, _ = pair(family, cls)
    inputs = batch(family, cls)
    torch.manual_seed(0)  # routers draw which experts work
    found = gradients(ours.train(), whole_loss(ours(**inputs | labels(family, cls, inputs))))
    without = {name for name, parameter in ours.named_parameters() if parameter.requires_grad} - found.keys()
    unread = {ours.checkpoint_names().dialect(name) for name in without}
    assert not {name for name in unread if not name.startswith(tuple(_unused_by_design(family, cls)))}


def _unused_by_design(family: Family, cls: type[Model]) -> list[str]:
    # A mask embedding is used only where positions are masked, and an encoder's pooler only without a decoder.
    poolers = ["encoder.pooler.dense.weight", "encoder.pooler.dense.bias"]
    # BEiT's head for pixels reads what goes into layers, so that the last one's output is read by nothing.
    last = [f"backbone.layers.{family.tiny['num_hidden_layers'] - 1}."] if cls.__name__ == "BeitForSemanticSegmentation" else []
    # Classes are those of the mean of patches, not of what is compared with texts.
    towers = {"CLIPForImageClassification": ["backbone.norm."], "SiglipForImageClassification": ["backbone.head."]}
    # What compares images and texts by cosine is not asked where each text reads its image.
    towers |= {"BlipForImageTextRetrieval": ["vision_proj.", "text_proj."]}
    towers |= {"BlipModel": [f"text_model.layers.{layer}.cross_attn" for layer in range(2)]}
    # Reformer has a bias that neither it nor the reference adds.
    towers |= {name: ["lm_head.bias"] for name in ("ReformerForMaskedLM", "ReformerModelWithLMHead")}
    # The last layer but one is read.
    towers["LlavaForConditionalGeneration"] = ["backbone.vision_tower.layers.1.", "backbone.vision_tower.norm."]
    # DPT's first fusion has nothing to add, and its own ViT is not read after its norm.
    neck = ["neck.fusions.0.skip."] + (["backbone.norm."] if family.model_type == "dpt" else [])
    if family.model_type in ("layoutlm", "squeezebert", "fnet", "big_bird", "luke"):  # poolers are there in all checkpoints
        return ["backbone.pooler."]
    if family.model_type == "canine":  # likewise; and what is pooled are molecules
        return ["backbone.pooler.", "backbone.last_layers.", "backbone.projection."]
    if family.model_type == "xmod":  # the languages of other texts
        return [f"backbone.layers.{layer}.adapters.{name}." for layer in range(2) for name in ("en_XX", "fr_XX")]
    if family.model_type == "led":  # which tokens with global attention alone have
        return [f"backbone.encoder.layers.{layer}.self_attn.global_" for layer in range(2)]
    if family.model_type == "tapas":  # what all columns have in common chooses none, and aggregations alone read the pooler
        return ["column_output_bias", *(["backbone.pooler."] if cls.__name__ == "TapasForQuestionAnswering" else [])]
    if family.model_type == "dpr":  # a reader's passages are not embedded
        return ["project."]
    if family.model_type == "esm":  # which contacts are read by, and nothing else
        return ["contact_head.", "backbone.contact_head."]
    return [
        *last,
        *neck,
        *towers.get(cls.__name__, []),
        "backbone.mask_embed",
        "backbone.embeddings.mask_token",
        "mask_embed",
        "embeddings.mask_token",
        *poolers,
    ]


@pytest.mark.parametrize(("family", "cls"), in_turn(EVERY, 80, whole=USED))
def test_loads_the_reference_state_dict(family: Family, cls: type[Model]) -> None:
    ours, theirs = pair(family, cls)
    fresh = cls(ours.config)
    fresh.load_state_dict(theirs.state_dict())
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name]), name


@pytest.mark.parametrize(("family", "cls"), in_turn(EVERY, 80, whole=USED, start=2))
def test_pickles_and_copies(family: Family, cls: type[Model]) -> None:
    ours, _ = pair(family, cls)
    inputs = batch(family, cls)
    expected = _run(ours, inputs)
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        check_same(twin, ours, lambda model: _run(model, inputs))
    again = pickle.loads(pickle.dumps(expected))
    assert list(again.keys()) == list(expected.keys())


# A turn compiles some of the families, and exports others; of their other classes it takes a few.
USED_FIRST = [case for case in FIRST if case in USED]
OTHERS = [case for case in EVERY if case not in FIRST]
COMPILED, EXPORTED = (
    [*in_turn(FIRST, 20, whole=USED_FIRST, start=start), *in_turn(OTHERS, 8, start=start)] for start in (0, 3)
)
PLAIN = [pytest.param(*case.values, {}, id=f"{case.id}-tiny") for case in EVERY]
VARIANTS = [
    pytest.param(*case.values, more, id=f"{case.id}-{name}") for case in EVERY for name, more in case.values[0].variants.items()
]
OF_FIRST = [case for case in VARIANTS if case.values[1] is classes(case.values[0])[0]]
OF_OTHERS = [case for case in VARIANTS if case not in OF_FIRST]
ALWAYS = [case for case in [*PLAIN, *OF_FIRST] if case.values[0].model_type in MOST_USED]


@pytest.mark.parametrize(
    ("family", "cls", "more"),
    [*in_turn(PLAIN, 150, whole=ALWAYS), *in_turn(OF_FIRST, 100, whole=ALWAYS), *in_turn(OF_OTHERS, 60)],
)
def test_round_trip(family: Family, cls: type[Model], more: dict[str, Any], tmp_path: Path) -> None:
    ours, theirs, other = originals(family, cls, **more)
    inputs = batch(replace(family, tiny=family.tiny | more) if family.modality == "pictures" else family, cls)
    compare(_run(ours, inputs), _run(theirs, inputs), SINGLE)
    ours.save_pretrained(tmp_path)
    mine = stored(str(tmp_path))
    if cls.__name__ == "BeitBackbone":  # the reference leaves its prefix on some names, and reads them without
        other = {name.removeprefix("beit."): tensor for name, tensor in other.items()}
    if family.model_type in ("clip", "siglip") and issubclass(cls, Backbone):  # older versions read no other names
        other = {f"{cls.base_model_prefix}.{name}": tensor for name, tensor in other.items()}
    if family.model_type == "llava":  # likewise
        other = {name.replace("vision_tower.", "vision_tower.vision_model."): tensor for name, tensor in other.items()}
    if family.model_type == "esm":  # written under names that no file of its makers has; it reads theirs
        old = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias", "encoder.layer.*.attention.self.": ""}
        for before, after in old.items():
            other = {name.replace(before, after): tensor for name, tensor in other.items()}
    skips = ours.checkpoint_names().skips
    unused = {name for name in other if any(part in name for part in family.computed) or (name not in mine and skips(name))}
    assert mine.keys() == other.keys() - unused
    assert all(torch.equal(mine[name], other[name]) for name in mine)
    count("tensors", len(mine))
    again, info = reference_class(cls).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["mismatched_keys"]
    assert not info["unexpected_keys"]
    assert set(info["missing_keys"]) <= unused
    back, expected = again.state_dict(), theirs.state_dict()
    assert all(torch.equal(back[name], expected[name]) for name in expected.keys() - unused)
    count("tensors", len(expected.keys() - unused))
    count("checkpoints", 2)
    again.set_experts_implementation("eager")
    compare(_run(again, inputs), _run(theirs, inputs), REPEATED)


@pytest.mark.parametrize(("family", "cls"), COMPILED)
def test_compiles_whole(family: Family, cls: type[Model]) -> None:
    ours, _ = pair(family, cls, **shallow(family.tiny))
    inputs = batch(family, cls) | _without_cache(cls)
    if "pixel_mask" not in inputs:  # targets are matched outside of a graph
        inputs |= labels(family, cls, inputs)
    torch._dynamo.reset()
    whole = torch.compile(ours, fullgraph=True, backend="eager")
    compare(_run(whole, inputs), _run(ours, inputs), SINGLE)


# What is made of other families' models has their kernels.
OF_ITS_OWN = [
    case for case in FIRST if not hasattr(case.values[1], "parts") and not issubclass(case.values[1], ForDepthEstimation)
]


@pytest.mark.parametrize(("family", "cls"), in_turn(OF_ITS_OWN, 3))
def test_compiles_with_inductor(family: Family, cls: type[Model]) -> None:
    ours, _ = pair(family, cls, **shallow(family.tiny))
    inputs = batch(family, cls) | _without_cache(cls)
    torch._dynamo.reset()
    compare(_run(torch.compile(ours, fullgraph=True), inputs), _run(ours, inputs), 10 * SINGLE)  # other kernels


@pytest.mark.parametrize(("family", "cls"), EXPORTED)
def test_exports(family: Family, cls: type[Model]) -> None:
    """The first of a family is exported whole, the others with one layer of what was seen there."""
    ours, _ = pair(family, cls, **({} if cls is classes(family)[0] else shallow(family.tiny)))
    inputs = batch(family, cls) | _without_cache(cls)
    exported = torch.export.export(ours, (), inputs)
    compare(_run(exported.module(), inputs), _run(ours, inputs), SINGLE)


@pytest.mark.parametrize(("family", "cls", "pad"), crossed(READERS, ["right", "left"], 100, whole=USED))
def test_padded_equals_alone(family: Family, cls: type[Backbone], pad: str) -> None:
    if pad == "left" and not family.left_padded_alone:
        return
    ours, _ = pair(family, cls)
    inputs = batch(family, cls, pad=pad)
    together = _run(ours, inputs).last_hidden_state
    for row in range(together.shape[0]):
        single = {}
        for name, value in inputs.items():
            real = inputs[f"{'decoder_' * name.startswith('decoder_')}attention_mask"][row].bool()
            single[name] = value[row : row + 1][:, real]
        real = inputs.get("decoder_attention_mask", inputs["attention_mask"])[row].bool()
        assert error(together[row : row + 1][:, real], _run(ours, single).last_hidden_state) <= SINGLE


COUNTED = ("roberta", "xlm_roberta", "mpnet", "roberta_prelayernorm", "xlm_roberta_xl", "xmod", "m2m_100", "longformer", "luke")
COUNTED += ("fsmt", "nllb-moe")


@pytest.mark.parametrize(("family", "cls"), in_turn(READERS, 60, whole=USED))
def test_embeddings_may_be_given(family: Family, cls: type[Backbone]) -> None:
    ours, _ = pair(family, cls)
    # Where positions come from the ids, those of padding cannot be known without them.
    counts_ids = family.model_type in COUNTED
    inputs = batch(family, cls, pad="none" if counts_ids else "right")
    given = {name: value for name, value in inputs.items() if name != "input_ids"}
    given["inputs_embeds"] = ours.get_input_embeddings()(inputs["input_ids"])
    compare(_run(ours, given), _run(ours, inputs), SINGLE)


@pytest.mark.parametrize(("family", "cls"), TASKS)
def test_decoders_read_what_labels_say(family: Family, cls: type[Model]) -> None:
    inputs = batch(family, cls)
    if "decoder_input_ids" not in inputs or not hasattr(cls, "prepare_decoder_input_ids_from_labels"):
        return
    ours, theirs = pair(family, cls)
    given = {"labels": labels(family, cls, inputs)["labels"].clone()} | {
        name: value for name, value in inputs.items() if not name.startswith("decoder_")
    }
    mine, other = _run(ours, given | {"use_cache": False}), _run(theirs, given | {"use_cache": False})
    compare(mine, other, SINGLE)
    ids = ours.prepare_decoder_input_ids_from_labels(given["labels"])
    if hasattr(theirs, "prepare_decoder_input_ids_from_labels"):  # models of speech and M2M-100 have none
        assert torch.equal(ids, theirs.prepare_decoder_input_ids_from_labels(given["labels"].clone()))
    few = _run(ours, inputs | {"logits_to_keep": 2})
    assert error(few.logits, _run(ours, inputs).logits[:, -2:]) <= SINGLE


def _same_gradients(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    # Gradients that are zero by cancellation are nothing but rounding: they are measured by the largest one.
    largest = max(float(gradient.norm()) for gradient in expected.values())
    for name, gradient in expected.items():
        assert float((found[name] - gradient).norm()) <= tolerance * max(float(gradient.norm()), 1e-3 * largest), name


def _squares(states: Any) -> Tensor:
    maps = states.feature_maps if "feature_maps" in states else [states.last_hidden_state]
    return torch.stack([each.square().sum() for each in maps]).sum()


@pytest.mark.parametrize(("family", "cls"), in_turn(BACKBONES, 30, whole=USED))
def test_chunks_and_recomputation_change_nothing(family: Family, cls: type[Backbone]) -> None:
    ours, _ = pair(family, cls)
    inputs = batch(family, cls)
    expected = gradients(ours, _squares(ours(**inputs)))
    chunked, _ = pair(family, cls, chunk_size_feed_forward=2)
    found = gradients(chunked, _squares(chunked(**inputs)))
    _same_gradients(found, expected, 1e-4)  # sums over chunks round otherwise
    for module in ours.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ours.eval()
    for stack in ours.stacks:
        stack.training = True  # recomputation is for training; layers stay deterministic
    ours.gradient_checkpointing_enable()
    again = gradients(ours, _squares(ours(**inputs)))
    _same_gradients(again, expected, SINGLE)


@pytest.mark.parametrize(("family", "cls"), in_turn(TASKS, 60))
def test_accumulated_gradients_equal_those_of_the_whole_batch(family: Family, cls: type[Model]) -> None:
    ours, _ = pair(family, cls)
    ours.double()  # some gradients are zero by cancellation, and in float32 nothing but rounding
    inputs = batch(family, cls)
    inputs |= labels(family, cls, inputs)
    inputs = doubled(inputs)
    whole = ours(**inputs)
    if getattr(whole, "loss_terms", None) is None or not all(term.additive for term in whole.loss_terms.values()):
        return  # declared as such: in-batch negatives and diversity are not sums over rows
    expected = gradients(ours, total(whole.loss_terms))
    counts = counts_of(ours, inputs)
    ours.zero_grad()
    losses = [total(ours(**of_row(inputs, row)).loss_terms, counts) for row in range(3)]
    torch.stack(losses).sum().backward()
    assert error(sum(losses), whole_loss(whole)) <= EXACT
    largest = max(float(gradient.norm()) for gradient in expected.values())
    for name, parameter in ours.named_parameters():
        if name in expected:
            assert parameter.grad is not None
            assert float((parameter.grad - expected[name]).norm()) <= EXACT * largest, name


WRITERS = [case for case in EVERY if case.id.endswith(("Model", "CausalLM", "ForConditionalGeneration"))]


@pytest.mark.parametrize(("family", "cls"), in_turn(WRITERS, 120, whole=USED))
def test_cached_equals_uncached(family: Family, cls: type[Model]) -> None:
    ours, _ = pair(family, cls, **(family.decoder or {}))
    if not decodes(ours) or not takes_cache(cls):
        return
    inputs = batch(family, cls, pad="none")
    inputs.pop("attention_mask", None)
    whole, first = _run(ours, inputs)[0], next(iter(inputs))
    if first == "input_ids" and inputs[first].ndim > 2:
        return  # several choices are not decoded step by step
    if "decoder_input_ids" in inputs:
        encoder = ours.get_encoder()
        inputs["encoder_outputs"] = _run(encoder, {encoder.main_input_name: inputs.pop(first)})
        inputs.pop("decoder_attention_mask")
    cache, parts = None, []
    for start, end in ((0, 4), (4, 5), (5, 6), (6, 9)):
        states = _run(ours, step(inputs, start, end) | {"past_key_values": cache, "use_cache": True})
        cache = states.past_key_values
        parts.append(states[0])
    assert error(torch.cat(parts, dim=1), whole) <= SINGLE


ROWS = [case for case in WRITERS if str(case.id).endswith("CausalLM")]


@pytest.mark.parametrize(("family", "cls"), in_turn(ROWS, 30, whole=USED))
def test_rows_go_on_in_company_as_alone(family: Family, cls: type[Model]) -> None:
    ours, _ = pair(family, cls, **(family.decoder or {}))
    ids = batch(family, cls, pad="none").get("input_ids")
    if ids is None or not getattr(ours.body, "can_continue_rows", False):
        return
    rows, caches = (ids[0, :9], ids[1, :7]), (DynamicCache(), DynamicCache())
    alone = [_run(ours, {"input_ids": row[None], "use_cache": False})[0][0] for row in rows]
    read, parts = [0, 0], ([], [])
    for lengths in ((3, 4), (1, 2), (1, 0), (4, 1)):
        shown = [number for number, length in enumerate(lengths) if length]
        new = [rows[number][read[number] : read[number] + lengths[number]] for number in shown]
        options = {"lengths": [len(part) for part in new], "past_key_values": RowCaches(caches[number] for number in shown)}
        found = _run(ours, {"input_ids": torch.cat(new)[None], **options})[0][0].split(options["lengths"])
        for number, part in zip(shown, found, strict=True):
            read[number] += len(part)
            parts[number].append(part)
    for row, part in zip(alone, parts, strict=True):
        assert error(torch.cat(part), row) <= SINGLE


def test_every_class_of_the_reference_is_there() -> None:
    import importlib

    missing: list[str] = []
    for family in FAMILIES:
        own = family.model_type.replace("-", "_")
        if find_spec(f"transformers.models.{own}") is None:
            continue  # a part of a family of which there is no more
        theirs: Any = importlib.import_module(f"transformers.models.{own}.modeling_{own}")
        names = {
            name
            for name in theirs.__all__
            if not name.endswith(("PreTrainedModel", "Layer", "RMSNorm", "Attention", "DecodeHead", "SparseMLP", "Router"))
        }
        # Older spellings of the bases, and a base of modules that computes nothing.
        names = {name for name in names if "Pretrained" not in name and name != "SqueezeBertModule"}
        missing += sorted(names - {cls.__name__ for cls in classes(family)})
    assert not missing


def test_tuples_hold_the_same_values() -> None:
    family, cls = EVERY[0].values
    ours, _ = pair(family, cls)
    inputs = batch(family, cls)
    as_output, as_tuple = _run(ours, inputs), _run(ours, inputs | {"return_dict": False})
    assert isinstance(as_tuple, tuple)
    assert all(isinstance(value, Tensor) for value in as_tuple)
    assert error(as_tuple, as_output.to_tuple()) == 0.0

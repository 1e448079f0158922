"""Strict dotted keys over a resolved config."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.spec import variant
from glu_lab.studies.overlay import apply_overlay, parse_assignment
from tests.studies.synthetic import base


def test_only_the_named_entries_change():
    changed = apply_overlay(base(), {"training.steps": 7, "model.attention.dropout": 0.1})
    assert changed.training.steps == 7
    assert changed.model.attention.dropout == 0.1
    back = apply_overlay(changed, {"training.steps": 100, "model.attention.dropout": 0.0})
    assert back == base()


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("training.stepz", "training.steps"),
        ("model.fnn.variant", "model.ffn.variant"),
        ("training.optimiser.kind", "training.optimizer.kind"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(key, nearest):
    with pytest.raises(UnknownNameError, match=rf"did you mean '{nearest}'") as caught:
        apply_overlay(base(), {key: 1})
    assert len(caught.value.choices) < 20


def test_a_value_of_the_wrong_type_is_refused_and_never_cast():
    with pytest.raises(SpecError, match="training.steps must be an integer"):
        apply_overlay(base(), {"training.steps": "7"})


def test_a_variant_replaces_branches_and_keeps_the_stated_width_and_biases():
    biased = dataclasses.replace(
        base(),
        model=base().model.__class__(
            **{
                **{f.name: getattr(base().model, f.name) for f in dataclasses.fields(base().model)},
                "ffn": variant("relu", d_model=32, d_ff=96, bias=True),
            }
        ),
    )
    plain = apply_overlay(base(), {"model.ffn.variant": "swiglu"}).model.ffn
    assert plain == variant("swiglu", d_model=32, d_ff=96)
    kept = apply_overlay(biased, {"model.ffn.variant": "swiglu"}).model.ffn
    assert kept == variant("swiglu", d_model=32, d_ff=96, bias=True)
    dropped = apply_overlay(biased, {"model.ffn.variant": "swiglu", "model.ffn.bias": False})
    assert dropped.model.ffn == variant("swiglu", d_model=32, d_ff=96)


def test_a_partly_biased_base_does_not_guess_the_biases_of_a_variant():
    ffn = variant("swiglu", d_model=32, d_ff=64)
    branches = (dataclasses.replace(ffn.branches[0], bias=True), ffn.branches[1])
    model = dataclasses.replace(base().model, ffn=ffn.replace(branches=branches))
    mixed = dataclasses.replace(base(), model=model)
    with pytest.raises(SpecError, match=r"set model\.ffn\.bias"):
        apply_overlay(mixed, {"model.ffn.variant": "reglu"})


def test_d_model_reaches_the_ffn():
    wider = apply_overlay(base(), {"model.d_model": 64})
    assert wider.model.ffn.d_model == 64


def test_keys_that_contain_one_another_are_refused():
    with pytest.raises(SpecError, match="set together"):
        apply_overlay(base(), {"training": {"steps": 1, "batch_size": 8}, "training.steps": 2})


@given(st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False))
def test_json_values_are_read_from_text(value):
    import json

    assert parse_assignment(f"a.b={json.dumps(value)}") == ("a.b", value)


def test_other_text_stays_text_and_is_never_evaluated():
    assert parse_assignment("a=__import__('os')") == ("a", "__import__('os')")
    assert parse_assignment("a=x=y") == ("a", "x=y")
    assert parse_assignment("a=NaN") == ("a", "NaN")
    with pytest.raises(SpecError, match="key=value"):
        parse_assignment("training.steps")

"""What the errors' messages say, and which failures of other libraries become one of ours."""

import errno
import os

import jax
import jax.numpy as jnp
import pytest

from glu_lab.errors import (
    ResourceError,
    UnknownNameError,
    folded,
    name_list,
    nearest_name,
    resource_error,
)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("Relu", "relu"), ("GeGLU-Tanh", "geglu_tanh"), ("ReLU²", "relu2"), ("swigloo", "swiglu")],
)
def test_the_nearest_name_is_found_whatever_its_case_and_marks(name, nearest):
    names = ("relu", "relu2", "geglu_erf", "geglu_tanh", "swiglu")
    assert nearest_name(name, names) == nearest
    assert f"did you mean {nearest!r}?" in str(UnknownNameError("thing", name, names))
    assert nearest_name("entirely else", names) is None


def test_names_with_commas_are_listed_in_quotes_and_others_are_not():
    assert name_list(["relu", "silu"]) == "relu, silu"
    assert name_list(["relu, peak=0.1", "silu"]) == "'relu, peak=0.1', 'silu'"
    assert folded("a_B-c 1²") == "abc12"


def full(number):
    return OSError(number, os.strerror(number), "/somewhere/file")


def caused(cause):
    """As the libraries between raise it: another error, with the first as its cause."""
    error = RuntimeError("it failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (full(errno.ENOSPC), r"the disk is full \(/somewhere/file\); free space"),
        (full(errno.EDQUOT), "the disk quota is used up"),
        (RuntimeError("write() failed: No space left on device; writing x"), "the disk is full;"),
        (MemoryError(), "out of memory. Lower training.batch_size"),
        (MemoryError("Unable to allocate 3 TiB"), r"out of memory \(Unable to allocate 3 TiB\)"),
    ],
)
def test_a_full_machine_is_told_with_what_to_lower_or_free(error, said):
    for raised in (error, caused(error)):
        found = resource_error(raised)
        assert isinstance(found, ResourceError)
        with pytest.raises(ResourceError, match=said):
            raise found
        assert "\n" not in str(found)


def test_jax_out_of_memory_is_told_too():
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(jnp.zeros(1 << 50, jnp.int8))
    found = str(resource_error(caught.value))
    assert found.startswith("out of memory (allocating 1125899906842624 bytes")
    assert "data.input_length" in found and "execution.remat='block'" in found


@pytest.mark.parametrize(
    "error", [ValueError("x"), full(errno.EACCES), caused(KeyError("loop")), KeyboardInterrupt()]
)
def test_other_errors_are_left_as_they_are(error):
    assert resource_error(error) is None

"""A checkpoint of one mesh loads on every other, bit for bit."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from glu_lab.data import load
from glu_lab.files.checkpoints import Checkpoints
from glu_lab.layers.params import flatten
from glu_lab.spec.execution import Execution
from glu_lab.spec.sharding import MESH_AXES, parse_mesh
from glu_lab.training.programs import Programs, program_key
from tests.training.small import small_experiment, small_model, text_data, write_corpus


def mesh_of(text):
    """A mesh over as many of the devices here as it needs."""
    sizes = tuple(parse_mesh(text, None).values())
    devices = jax.devices()[: int(np.prod(sizes))]
    return jax.make_mesh(sizes, MESH_AXES, axis_types=(AxisType.Explicit,) * 3, devices=devices)


def by_path(tree):
    return {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(tree)}


def numbers(x):
    return np.asarray(
        jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    corpus = write_corpus(folder / "documents.jsonl")
    data = text_data(corpus, objective="span_corruption", logical_shards=4, vocab_size=302)
    return load(data, cache_dir=folder / "cache")


@pytest.fixture(scope="module")
def key(dataset):
    model = small_model("encoder_decoder")
    heads = dataclasses.replace(model.attention, num_heads=4, num_kv_heads=4, dropout=0.1)
    model = dataclasses.replace(model, attention=heads, vocab_size=312)
    return program_key(small_experiment(dataset.spec, model=model), dataset)


def test_saved_on_eight_devices_and_loaded_on_one_two_and_four(tmp_path, key, dataset):
    def placed(text):
        execution = Execution(mesh=text)
        return Programs(dataclasses.replace(key, execution=execution), mesh_of(text))

    eight = placed("data=2,model=4")
    state = eight.init(eight.put_key(3))
    iterator = dataset.train_iterator(seed=3, batch_size=4)
    batches = [next(iterator) for _ in range(2)]
    for batch in batches:
        state, _ = eight.train(state, eight.put_rows(batch), np.float32(0.01))
    wi = state["params"]["decoder"]["layers"]["ffn"]["wi"]
    assert {shard.data.shape[-1] for shard in wi.addressable_shards} == {wi.shape[-1] // 4}
    saved = Checkpoints(tmp_path / "checkpoints", keep=1)
    saved.save(2, state, {"iterator": iterator.get_state()})
    saved.close()

    plain = by_path(state)
    following = next(iterator)
    for text in ("data=1", "fsdp=2", "data=2,model=2", "fsdp=2,model=2", "data=4", "model=4"):
        program = placed(text)
        checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1, mode="read")
        step, loaded, loop = checkpoints.load(program.abstract_state())
        checkpoints.close()
        assert step == 2
        for name, x in by_path(loaded).items():
            np.testing.assert_array_equal(
                numbers(x), numbers(plain[name]), err_msg=f"{text}: {name}"
            )
        for name, wanted in by_path(program.abstract_state()).items():
            got = by_path(loaded)[name].sharding
            assert got.is_equivalent_to(wanted.sharding, wanted.ndim), (text, name)
        # The batch that comes next, for one process and for each of two.
        for count in (1, 2):
            parts = []
            for process in range(count):
                again = dataset.train_iterator(
                    seed=3, batch_size=4, process_index=process, process_count=count
                )
                again.set_state(loop["iterator"])
                parts.append(next(again))
            for name in following:
                whole = np.concatenate([part[name] for part in parts])
                np.testing.assert_array_equal(whole, following[name])


def test_initial_values_do_not_depend_on_the_mesh(key):
    values = {}
    for text in ("data=1", "data=2,fsdp=2,model=2", "model=4"):
        program = Programs(dataclasses.replace(key, execution=Execution(mesh=text)), mesh_of(text))
        values[text] = {
            name: np.asarray(x)
            for name, x in flatten(program.init(program.put_key(7))["params"]).items()
        }
    for tree in values.values():
        for name, value in tree.items():
            # The random bits are the same; the inverse error function that makes normal numbers of
            # them is compiled for each shape, and was seen to round one of 256 elsewhere.
            np.testing.assert_array_max_ulp(value, values["data=1"][name], maxulp=2)

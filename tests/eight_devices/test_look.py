"""What the pictures of a sharded array say is what the devices hold."""

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from glu_lab.errors import SpecError
from glu_lab.layers import ffn
from glu_lab.sharding.look import capture, draw, heat_maps, look, pieces
from glu_lab.sharding.mesh import make_mesh
from glu_lab.spec import variant

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def mesh():
    return make_mesh("data=2,model=4")


@pytest.fixture(scope="module")
def seen(mesh):
    spec = variant("drelu", d_model=6, d_ff=8, bias=True)
    params = ffn.init(jax.random.key(0), spec)
    x = jax.random.normal(jax.random.key(1), (4, 3, 6))
    expected = {}
    ffn.apply(params, x, spec, tap=expected.__setitem__)
    return capture(params, x, spec, mesh), expected


def test_captured_values_are_those_of_one_device(seen):
    captured, expected = seen
    for name in ("input", "product", "output"):
        np.testing.assert_allclose(captured[name], expected[name], rtol=1e-6, atol=1e-7)
    for i in range(2):
        for name, tap in (("argument", "pre_activation"), ("branch", "branches")):
            wanted = expected[tap][..., i, :]
            np.testing.assert_allclose(captured[f"{name}_{i}"], wanted, rtol=1e-6, atol=1e-7)


def test_gate_up_and_product_are_cut_alike(seen):
    captured, _ = seen
    places = [
        [(piece.where, piece.devices) for piece in pieces(captured[name])]
        for name in ("branch_0", "branch_1", "product")
    ]
    assert places[0] == places[1] == places[2]
    assert len(places[0]) == 8 and places[0][0] == ("0:2, 0:3, 0:2", (0,))
    assert [piece.devices for piece in pieces(captured["output"])] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_statistics_are_those_of_each_piece(seen):
    product = np.asarray(seen[0]["product"], np.float64)
    for piece in pieces(seen[0]["product"]):
        part = product[tuple(map(slice, piece.start, piece.stop))]
        assert piece.rms == pytest.approx(np.sqrt((part**2).mean()), rel=1e-12)
        assert piece.mean == pytest.approx(part.mean(), rel=1e-12)
        assert (piece.low, piece.high) == (part.min(), part.max())
        assert piece.exact_zero == (part == 0).mean()
        assert piece.non_finite == 0


def test_text_and_html_name_every_piece(seen):
    shown = look(seen[0]["product"], "pro<duct")
    text = str(shown)
    assert "float32 4×3×8, split (data=2, ·, model=4); 8 pieces" in text
    for piece in pieces(seen[0]["product"]):
        assert f"[{piece.where}]" in text and f"[{piece.where}]" in shown._repr_html_()
    assert "pro&lt;duct" in shown._repr_html_() and "pro<duct" not in shown._repr_html_()
    assert "2 pieces, 4 copies of each" in str(look(seen[0]["output"]))


def test_pictures_have_a_rectangle_or_an_image_for_each_piece(seen):
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    product = seen[0]["product"]
    axes = draw(product, "product")
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert sorted(box.get_xy() for box in boxes) == sorted(
        (piece.start[2], piece.start[0]) for piece in pieces(product)
    )
    assert {text.get_text() for text in axes.texts} == {f"device {i}" for i in range(8)}
    figure = heat_maps(product, "product")
    images = [image for axes in figure.axes for image in axes.images]
    assert len(images) == 8
    first = np.asarray(product, np.float64)[0:2, :, 0:2].mean(axis=1)
    np.testing.assert_allclose(images[0].get_array(), first, rtol=1e-12)
    pyplot.close("all")


def test_any_array_can_be_looked_at(mesh):
    from matplotlib import pyplot

    plain = look(jnp.arange(6.0), "plain")
    assert "split nowhere; 1 pieces" in str(plain)
    draw(jnp.arange(6.0))
    heat_maps(jnp.arange(6.0))
    pyplot.close("all")
    nan = jax.device_put(jnp.array([1.0, jnp.nan] * 2), NamedSharding(mesh, P("data")))
    assert [piece.non_finite for piece in pieces(nan)] == [1, 1]
    with pytest.raises(SpecError, match="scalar"):
        draw(jnp.float32(1))
    cube = jax.device_put(
        jnp.ones((2, 2, 2)),
        NamedSharding(make_mesh("data=2,fsdp=2,model=2"), P("data", "fsdp", "model")),
    )
    with pytest.raises(SpecError, match="split along 3 dimensions"):
        draw(cube)


def test_sizes_that_do_not_divide_are_refused(mesh):
    spec = variant("swiglu", d_model=6, d_ff=6)
    params = ffn.init(jax.random.key(0), spec)
    with pytest.raises(SpecError, match="mlp = 6 does not divide over model=4"):
        capture(params, jnp.ones((4, 3, 6)), spec, mesh)
    spec = variant("swiglu", d_model=6, d_ff=8)
    with pytest.raises(SpecError, match="rows = 3 does not divide"):
        capture(ffn.init(jax.random.key(0), spec), jnp.ones((3, 3, 6)), spec, mesh)

"""What `jit` means: `torch.vmap` of a function, whatever its arguments look like."""

import functools
import warnings
from typing import Any, NamedTuple

import mujoco
import numpy as np
import optree
import pytest
import torch
from torch import Tensor

import mjtorch
from mjtorch import jit, tree

X = torch.arange(12.0).reshape(3, 4)


class Pair(NamedTuple):
    """A tree of the standard library."""

    first: Tensor
    second: Tensor


@tree.dataclass
class Spring(tree.Tree):
    """A tree of ours."""

    stiffness: Tensor
    rest: Tensor | None = None
    name: str = tree.field(static=True, default="")
    table: Tensor | None = tree.field(constant=True, default=None)


SHARED = Spring(0, None, "", None)  # axes: one stiffness per world, one table for all


def same(found: Any, wanted: Any) -> None:
    """Equal in structure, shapes, dtypes and, to rounding, values."""
    leaves, spec = optree.tree_flatten(found, namespace=tree.NAMESPACE)
    others, other_spec = optree.tree_flatten(wanted, namespace=tree.NAMESPACE)
    assert spec == other_spec
    for x, y in zip(leaves, others, strict=True):
        torch.testing.assert_close(x, y, equal_nan=True)


# --- axes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "f, in_dims, args",
    [
        (lambda a: a.sum(), 0, (X,)),
        (lambda a: a * 2, 1, (X,)),
        (lambda a: a * 2, -1, (X,)),
        (lambda a: a.sum(0), -2, (torch.rand(4, 3, 2),)),
        (lambda a, b: a @ b, (0, None), (X, torch.ones(4))),
        (lambda a, b: a + b, (0, 1), (X, X.T)),
        (lambda p: p.first @ p.second, 0, (Pair(X, X),)),
        (lambda t: t["u"] + t["v"], ({"u": 0, "v": None},), ({"u": X, "v": torch.ones(4)},)),
        (lambda t: t["u"][0] + t["u"][1] + t["v"], ({"u": None, "v": 1},), ({"u": [X[0], X[1]], "v": X.T},)),
        (lambda a, s: a[0] * s.stiffness, (0, Spring(None, None)), ((X,), Spring(torch.tensor(2.0)))),
        (lambda a, s: a * s.stiffness, (0, Spring(0, None)), (X, Spring(torch.rand(3)))),
        (lambda a: a.any(), 0, (X > 3,)),
        (lambda a: a * a.argmax(), 0, (torch.tensor(3).expand(5, 2),)),
    ],
)
def test_axes(f: Any, in_dims: Any, args: tuple) -> None:
    same(jit(f, in_dims=in_dims, strict=True)(*args), torch.vmap(f, in_dims=in_dims)(*args))


@pytest.mark.parametrize("out_dims", [0, 1, -1, (1, {"k": 0}), (0, -1)])
def test_where_the_worlds_of_a_result_are(out_dims: Any) -> None:
    def f(a: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return a.outer(a), {"k": a * 2}

    same(jit(f, out_dims=out_dims, strict=True)(X), torch.vmap(f, out_dims=out_dims)(X))


def test_a_result_without_worlds() -> None:
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a * b, b.cos(), torch.ones(2), b

    found = jit(f, in_dims=(0, None), out_dims=(0, None, None, None), strict=True)(X, X[0])
    same(found, (X * X[0], X[0].cos(), torch.ones(2), X[0]))
    with pytest.raises(ValueError, match="result 0, which differs between worlds"):
        jit(f, in_dims=(0, None), out_dims=None)(X, X[0])


def test_one_world() -> None:
    f = jit(lambda a, s: (a.sum(), s.stiffness * 2), in_dims=None, strict=True)
    same(f(X, Spring(torch.tensor(3.0))), (X.sum(), torch.tensor(6.0)))


@pytest.mark.parametrize("worlds", [0, 1, 2, 3, 64, 257])
def test_any_number_of_worlds(worlds: int) -> None:
    f = jit(lambda a: (a.sin().cumsum(0), a.sum(), torch.ones(2)), strict=True)
    x = torch.rand(worlds, 5)
    same(f(x), (x.sin().cumsum(1), x.sum(1), torch.ones(worlds, 2)))


# --- arguments --------------------------------------------------------------------------------------------------------


def test_keywords() -> None:
    def f(a: Tensor, /, b: Tensor, *more: Tensor, scale: float = 1.0, **others: Tensor) -> Tensor:
        return a * scale + b + sum(more) + others.get("c", 0)

    g = jit(f, strict=True)
    same(g(X, X), 2 * X)
    same(g(X, b=X, c=X), 3 * X)
    same(g(X, X, X, X, scale=X), X * X + 3 * X)
    same(jit(f, in_dims=(0, None, None), strict=True)(X, b=X[0], scale=2.0), 2 * X + X[0])


def test_static_arguments() -> None:
    def f(a: Tensor, power: int = 2, *, mode: str = "sum") -> Tensor:
        return getattr(a**power, mode)()

    g = jit(f, static_argnames=("power", "mode"), strict=True)
    same(g(X), (X**2).sum(1))
    same(g(X, 3), (X**3).sum(1))
    same(g(X, power=3, mode="mean"), (X**3).mean(1))
    same(g(X, True), X.sum(1))
    same(g(X, 1), X.sum(1))
    assert g.traces == 5
    with pytest.raises(TypeError, match="static argument 'power' must be hashable"):
        g(X, [2])
    with pytest.raises(ValueError, match=r"\['mod'\] are not arguments"):
        jit(f, static_argnames=("mod",))(X)
    same(jit(f, static_argnames=("power", "mode"), backend="eager")(X, mode="mean"), (X**2).mean(1))


def test_numbers_have_the_precision_of_tensors() -> None:
    f = jit(lambda a, b: a * b, in_dims=(0, None), strict=True)
    assert f(X.double(), 0.1)[0, 1].item() == 0.1
    assert f(X, 0.1).dtype == torch.float32
    same(f(X, True), X)
    same(f(X, np.float32(2)), 2 * X)
    assert f(X, 0.1).equal(f(X, 0.1)) and f.traces == 3  # values are free, kinds of numbers are not


def test_none_is_no_argument() -> None:
    def f(a: Tensor, b: Tensor | None, t: tuple) -> tuple[Tensor, None]:
        return (a if b is None else a + b) + (0 if t[1] is None else t[1]), None

    g = jit(f, strict=True)
    same(g(X, None, (X, None)), (X, None))
    same(g(X, X, (X, X)), (3 * X, None))


def test_layouts() -> None:
    """Strides, offsets and dtypes of inputs do not matter."""
    f = jit(lambda a: a.sin().sum(0), strict=True)
    base = torch.rand(6, 4, 5)
    for x in (base, base.mT, base[::2], base[:, 1:3], base.permute(2, 0, 1), base[:1].expand(7, 4, 5), base.flip(0)):
        same(f(x), x.sin().sum(1))
    same(f(base.numpy()), base.sin().sum(1))


def test_integers_of_32_bits() -> None:
    x = torch.arange(-3, 3, dtype=torch.int32)
    f = jit(lambda a: (a, a + 1, a.long(), a * 2.5, a // 2, torch.arange(4)[a % 4]), strict=True)
    same(f(x), (x, x + 1, x.long(), x * 2.5, x // 2, (x % 4).long()))
    assert jit(lambda a: a.int(), strict=True)(x.long()).dtype == torch.int32


def test_decorator() -> None:
    @jit
    def double(a: Tensor) -> Tensor:
        """Twice as much."""
        return 2 * a

    @jit(in_dims=(0, None))
    def scale(a: Tensor, b: Tensor) -> Tensor:
        return a * b

    same(double(X), 2 * X)
    same(scale(X, torch.tensor(3.0)), 3 * X)
    assert double.__doc__ == "Twice as much." and repr(double) == "jit(double)"
    same(jit(functools.partial(lambda a, b: a * b, b=2.0))(X), 2 * X)


# --- results ----------------------------------------------------------------------------------------------------------


def test_results_may_be_anything_that_is_a_number() -> None:
    found = jit(lambda a: (a, a, a * 1, a, torch.ones(2), 3, 2.5, True, None, Pair(a, a[0])), strict=True)(X)
    ones = torch.ones(3)
    wanted = (X, X, X, X, torch.ones(3, 2), 3 * ones.long(), 2.5 * ones, ones.bool(), None, Pair(X, X[:, 0]))
    same(found, wanted)


@pytest.mark.parametrize("worlds", [1, 3])
def test_writing_to_a_result_changes_no_later_result(worlds: int) -> None:
    f = jit(lambda a: (a + 1, torch.ones(2), a), strict=True)
    first = [x.clone() for x in f(X[:worlds].clone())]
    for _ in range(2):
        found = f(X[:worlds].clone())
        same(tuple(found), tuple(first))
        for x in found:
            (x[0] if x.stride(0) == 0 else x).add_(5)


# --- what is compiled when --------------------------------------------------------------------------------------------


def test_equal_constants_are_one_program() -> None:
    f = jit(lambda s, i: (s.stiffness * s.table.sum(), s.stiffness[i]), in_dims=(SHARED, 0), strict=True)
    table = torch.arange(4)
    for n in range(20):
        x = torch.rand(n + 1, 4)
        i = torch.arange(len(x)) % 4
        product, picked = f(Spring(x, table=table if n % 2 else table.clone()), i)
        same(product, x * 6)
        same(picked, x.gather(1, i[:, None])[:, 0])
    assert f.traces == 1
    ((compiled,),) = f.programs.values()
    assert set(compiled.builds) == {True, False}


def test_another_shape_dtype_structure_or_constant_is_another_program() -> None:
    f = jit(lambda s: s.stiffness.sum() if s.table is None else s.stiffness.sum() * s.table.sum(), strict=True)
    f(Spring(X))
    f(Spring(X[:, :3]))
    f(Spring(X.double()))
    f(Spring(X, name="left"))
    assert f.traces == 4
    g = jit(lambda s: s.stiffness * s.table.sum(), in_dims=(SHARED,), strict=True)
    same(g(Spring(X, table=torch.arange(4))), X * 6)
    same(g(Spring(X, table=torch.arange(3))), X * 3)
    same(g(Spring(X, table=torch.arange(4))), X * 6)
    assert g.traces == 2


def test_captured_tensors_are_never_stale() -> None:
    weight, other = torch.ones(4), torch.full((4,), 2.0)
    f = jit(lambda a: a * weight + other, strict=True)
    same(f(X), X + 2)
    weight.add_(1)
    with pytest.warns(RuntimeWarning, match="changed in place; compiling again"):
        same(f(X), 2 * X + 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(f(X), 2 * X + 2)
    assert f.traces == 2 and sum(map(len, f.programs.values())) == 1


@pytest.mark.parametrize("looped", [False, True])
def test_captured_numbers_are_never_stale(looped: bool) -> None:
    """What the function has asked a tensor from around it for, and made a Python number of."""
    count = torch.tensor(2)

    def trip(_: Any, a: Tensor) -> Tensor:
        return a + int(count + torch.tensor(1)) + int(count)

    f = jit(lambda a: mjtorch.control_flow.fori_loop(0, 9, trip, a) if looped else 9 * trip(0, a), strict=True)
    same(f(X), (X + 45) if looped else 9 * (X + 5))
    count.add_(1)
    with pytest.warns(RuntimeWarning, match="changed in place; compiling again"):
        same(f(X), (X + 63) if looped else 9 * (X + 7))


def test_captured_in_a_loop() -> None:
    weight = torch.ones(4)
    f = jit(lambda a: mjtorch.control_flow.while_loop(lambda y: y.sum() < 50, lambda y: y + weight, a), strict=True)
    wanted = torch.stack([f.f(x) for x in X])
    same(f(X), wanted)
    weight.mul_(2)
    with pytest.warns(RuntimeWarning, match="compiling again"):
        same(f(X), torch.stack([f.f(x) for x in X]))


def test_captured_in_a_scan() -> None:
    """What a loop captures, and what it goes through."""
    weight, rows = torch.ones(4), torch.arange(40.0).reshape(10, 4)

    def f(a: Tensor) -> Tensor:
        return mjtorch.control_flow.scan(lambda y, row: (y + weight * row, None), a, rows)[0]

    same(jit(f, strict=True)(X), X + rows.sum(0))
    same(jit(torch.func.grad(lambda a: f(a).square().sum()), strict=True)(X), 2 * (X + rows.sum(0)))


def test_captured_beside_writes() -> None:
    """What a scan goes through, begins with and captures is one memory, and around it something is written in place."""
    rows = np.arange(4.0, dtype=np.float32)

    def f(a: Tensor) -> Tensor:
        twice = 2 * a
        twice[0] = 1.0

        def trip(y: Tensor, x: Tensor) -> tuple[Tensor, None]:
            return y + x * twice.flip(0) + twice[1:].sum() + torch.from_numpy(rows), None

        return mjtorch.control_flow.scan(trip, twice, twice, unroll=False)[0]

    for worlds in (X, X[:1]):
        same(jit(f, strict=True)(worlds), torch.stack([f(x) for x in worlds]))


def test_captured_as_a_start_that_is_replaced() -> None:
    """The loop inside begins with a tensor from around the loop outside, and never looks at it."""

    def f(a: Tensor) -> Tensor:
        start = a.sin()

        def trip(y: Tensor, _: Any) -> tuple[Tensor, None]:
            return mjtorch.control_flow.scan(lambda z, row: (y + row, None), start, y.new_ones(9, 4))[0], None

        return mjtorch.control_flow.scan(trip, a, length=9)[0]

    same(jit(f, strict=True)(X), X + 9)
    same(jit(torch.func.grad(lambda a: f(a).sum()), strict=True)(X), torch.ones_like(X))


# --- transforms -------------------------------------------------------------------------------------------------------


def potential(a: Tensor) -> Tensor:
    """A scalar function."""
    return (a.sin() * a.flip(0)).sum() + a.prod()


def test_jit_of_derivatives() -> None:
    def f(a: Tensor) -> Any:
        return (
            torch.func.grad(potential)(a),
            torch.func.grad_and_value(potential)(a),
            torch.func.jacrev(lambda x: x.outer(x).sum(0))(a),
            torch.func.jacfwd(torch.sin)(a),
            torch.func.hessian(potential)(a),
            torch.func.jvp(potential, (a,), (a.cos(),)),
            torch.func.vjp(torch.sin, a)[1](a)[0],
        )

    same(jit(f, strict=True)(X), torch.vmap(f)(X))
    same(jit(torch.func.grad(potential), strict=True)(X), torch.vmap(torch.func.grad(potential))(X))


def test_transforms_of_jit() -> None:
    """Inside of somebody else's transform a compiled function is the function itself, world by world."""
    f = jit(potential, strict=True)
    one = jit(potential, in_dims=None, strict=True)
    same(torch.func.grad(one)(X[0]), torch.func.grad(potential)(X[0]))
    same(torch.func.jvp(f, (X,), (X,)), torch.func.jvp(torch.vmap(potential), (X,), (X,)))
    same(torch.vmap(f)(X.reshape(3, 2, 2)), torch.vmap(torch.vmap(potential))(X.reshape(3, 2, 2)))
    assert f.traces == one.traces == 0


def test_jit_in_jit() -> None:
    inner = jit(lambda a, k: a * k, in_dims=(0, None), strict=True)
    f = jit(lambda a: inner(a.reshape(2, 2), a[0]).sum() + inner(a.reshape(2, 2), 2.0).sum(), strict=True)
    same(f(X), X.sum(1) * X[:, 0] + 2 * X.sum(1))
    assert (f.traces, inner.traces) == (1, 0)
    same(jit(jit(torch.sin, in_dims=None), strict=True)(X), X.sin())


def test_vmap_inside() -> None:
    def f(a: Tensor, b: Tensor) -> Any:
        rows = torch.vmap(lambda r: r.outer(r).cumsum(0))(a.reshape(2, 2))
        return rows, torch.vmap(torch.dot, in_dims=(1, None))(b, b[:, 0]), torch.vmap(torch.vmap(torch.sin))(b)

    b = torch.rand(3, 2, 3)
    same(jit(f, strict=True)(X, b), torch.vmap(f)(X, b))


def test_modules() -> None:
    """Parameters are arguments: a trained module needs no other program."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    f = jit(lambda p, a: torch.func.functional_call(net, p, (a,)), in_dims=(None, 0), strict=True)
    for _ in range(2):
        parameters = {k: p.detach() for k, p in net.named_parameters()}
        with torch.no_grad():
            same(f(parameters, X), net(X))
            for p in net.parameters():
                p.add_(0.1)
    assert f.traces == 1
    each = {k: torch.stack([p.detach(), 2 * p.detach()]) for k, p in net.named_parameters()}
    g = jit(lambda p, a: torch.func.functional_call(net, p, (a,)), in_dims=(0, None), strict=True)
    same(g(each, X[0]), torch.vmap(lambda p: torch.func.functional_call(net, p, (X[0],)))(each))


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0, 0), (3, 0, 2), (2, 0)])
def test_arrays_without_elements(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    f = jit(lambda a: (a * 2, a.sum(), a.any(), torch.cat([a, a]), torch.ones(0, 2), a.new_ones(2)), strict=True)
    n = shape[0]
    wanted = x * 2, x.flatten(1).sum(1) if x.numel() else torch.zeros(n), torch.zeros(n, dtype=torch.bool)
    same(f(x), (*wanted, torch.cat([x, x], 1), torch.ones(n, 0, 2), torch.ones(n, 2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    def f(a: Tensor) -> Any:
        return a, a + a, a * 2.5, a * True, a.sum(), a > 0, a.double(), a.float(), a.long(), torch.where(a > 1, a, 0)

    x = (X - 2).to(dtype)
    same(jit(f, strict=True)(x), torch.vmap(f)(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool])
def test_large_tables(dtype: torch.dtype) -> None:
    """Every bit of their numbers, also of those that have no digits."""
    size = 1000
    table = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e3
    table = table.to(dtype)
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        odd = [torch.inf, -torch.inf, torch.nan, -0.0, info.tiny / 4, info.max]
        table[5 : 5 + len(odd)] = torch.tensor(odd, dtype=dtype)
    elif dtype != torch.bool:
        table[5:7] = torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max])
    order = torch.randperm(size, generator=torch.Generator().manual_seed(1))

    def f(k: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return table[k + torch.arange(10)], x[order]

    k, x = torch.tensor([0, 3, 500]), torch.arange(3.0 * size).reshape(3, size)
    for got, wanted in zip(jit(f, strict=True)(k, x), torch.vmap(f)(k, x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
        assert not got.is_floating_point() or torch.equal(got.signbit(), wanted.signbit())


# --- the engine -------------------------------------------------------------------------------------------------------

PENDULUM = """
<mujoco><option timestep="0.01" integrator="implicitfast"/><worldbody>
  <body><joint name="h" type="hinge" axis="0 1 0" damping="0.1"/><geom type="capsule" size=".05" fromto="0 0 0 0 0 -1"/>
  </body></worldbody><actuator><motor joint="h"/></actuator></mujoco>
"""


def test_models_that_differ_between_worlds() -> None:
    m = mjtorch.put_model(mujoco.MjModel.from_xml_string(PENDULUM), dtype=torch.float64)
    d = mjtorch.batch(mjtorch.make_data(m), 3)
    d = d.replace(qpos=torch.tensor([[0.1], [1.0], [2.0]], dtype=torch.float64))
    axes = (mjtorch.model_axes(m, "body_mass", "opt.gravity"), 0)
    m = m.replace(
        body_mass=m.body_mass * torch.tensor([[1.0], [2.0], [3.0]]),
        opt=m.opt.replace(gravity=m.opt.gravity * torch.tensor([[1.0], [0.5], [0.0]])),
    )
    same(jit(mjtorch.step, in_dims=axes, strict=True)(m, d), torch.vmap(mjtorch.step, in_dims=axes)(m, d))

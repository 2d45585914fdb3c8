"""What the solver tests share: C's own constraint rows as input, and what C makes of them."""

import mujoco
import numpy as np
import torch

from mjtorch import tree
from mjtorch.model import Contact, Data, Model, make_data, put_model
from mjtorch.model.plan import solver as solver_plan
from mjtorch.model.plan.tensors import Tensors

OUTPUTS = ("qacc", "qfrc_constraint", "efc_force", "efc_b", "efc_state", "solver_niter")


def compiled(xml: str, **options: object) -> mujoco.MjModel:
    """A model that C solves as one problem, with dense matrices."""
    mj_model = mujoco.MjModel.from_xml_string(xml)
    mj_model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    mj_model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
    for name, value in options.items():
        setattr(mj_model.opt, name, value)
    return mj_model


def moving(mj_model: mujoco.MjModel, seed: int, steps: int = 20) -> mujoco.MjData:
    """A state some steps after a random kick, after `mj_forward`, with a warm start that fits the step before."""
    rng = np.random.default_rng(seed)
    d = mujoco.MjData(mj_model)
    mujoco.mj_integratePos(mj_model, d.qpos, 0.3 * rng.standard_normal(mj_model.nv), 1.0)
    d.qvel[:] = rng.standard_normal(mj_model.nv)
    d.ctrl[:] = rng.standard_normal(mj_model.nu)
    for _ in range(steps):
        mujoco.mj_step(mj_model, d)
    d.ctrl[:] += 0.1 * rng.standard_normal(mj_model.nu)
    d.qfrc_applied[:] = 0.1 * rng.standard_normal(mj_model.nv)
    mujoco.mj_forward(mj_model, d)
    return d


def from_c(
    mj_model: mujoco.MjModel, d: mujoco.MjData, *, dtype: torch.dtype = torch.float64, spare: int = 0
) -> tuple[Model, Data]:
    """Model and Data whose rows are those of C, and `spare` inactive rows and contacts; outputs are NaN."""
    m = put_model(mj_model, dtype=dtype)
    contacts = [c for c in range(d.ncon) if d.contact.efc_address[c] >= 0]
    slot = {c: i for i, c in enumerate(contacts)}
    first_contact = min([d.contact.efc_address[c] for c in contacts], default=d.nefc)
    ids = tuple(slot[i] if row >= first_contact else int(i) for row, i in enumerate(d.efc_id))
    dims = tuple(int(d.contact.dim[c]) for c in contacts)
    limit = int(mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT)
    types = tuple(int(t) for t in d.efc_type) + (limit,) * spare
    make = Tensors(m.qpos0.device, dtype)
    plan = solver_plan.from_rows(
        types,
        ids + (0,) * spare,
        dims,
        make=make,
        by_dof=solver_plan.from_types(mj_model, types, ids + (0,) * spare, make),
        iterations=mj_model.opt.iterations,
    )
    m = m.replace(plan=m.plan.replace(solver=plan))

    def tensor(x: np.ndarray, fill: float = 0.0) -> torch.Tensor:
        x = np.array(x, dtype=np.float64)
        return torch.tensor(np.concatenate([x, np.full((spare, *x.shape[1:]), fill)]), dtype=dtype)

    out = make_data(m)
    copied = "qacc_smooth qfrc_smooth qacc_warmstart M".split()
    fields = {name: torch.tensor(np.array(getattr(d, name)), dtype=dtype) for name in copied}
    dense = np.zeros((mj_model.nv, mj_model.nv))
    mujoco.mj_fullM(mj_model, d, dense)
    n = len(contacts)
    friction = torch.tensor(d.contact.friction[contacts].reshape(n, 5), dtype=dtype)
    zero, nothing = torch.zeros(n, 1, dtype=dtype), torch.zeros(0, 2, dtype=torch.int64)
    contact = Contact(
        dist=zero[:, 0],
        pos=zero.expand(n, 3),
        frame=zero[..., None].expand(n, 3, 3),
        includemargin=zero[:, 0],
        friction=friction,
        solref=zero.expand(n, 2),
        solreffriction=zero.expand(n, 2),
        solimp=zero.expand(n, 5),
        geom=torch.zeros(n, 2, dtype=torch.int64),
        flex=nothing,
        elem=nothing,
        vert=nothing,
        detected=torch.ones(n, dtype=torch.bool),
        speculative=torch.zeros(0, dtype=torch.bool),
        dim=dims,
    )
    return m, out.replace(
        **fields,
        qLD=torch.tensor(np.linalg.cholesky(dense[::-1, ::-1])[::-1, ::-1].T.copy(), dtype=dtype),
        efc_J=tensor(d.efc_J.reshape(d.nefc, mj_model.nv), 3.0),
        efc_aref=tensor(d.efc_aref, 1.0),
        efc_D=tensor(d.efc_D),
        efc_R=tensor(d.efc_R, torch.inf),
        efc_frictionloss=tensor(d.efc_frictionloss),
        contact=contact,
        qacc=torch.full_like(out.qacc, torch.nan),
        qfrc_constraint=torch.full_like(out.qacc, torch.nan),
        efc_force=tensor(np.full(d.nefc, np.nan)),
        efc_b=tensor(np.full(d.nefc, np.nan)),
        efc_state=torch.full((d.nefc + spare,), -1),
        solver_niter=torch.tensor(-1),
    )


def error(actual: torch.Tensor, expected: np.ndarray) -> float:
    """Largest difference relative to the largest value."""
    wanted = torch.as_tensor(np.array(expected), dtype=actual.dtype)
    if not wanted.numel():
        return 0.0
    assert not actual.isnan().any()
    return float((actual[: len(wanted)] - wanted).abs().max() / max(float(wanted.abs().max()), 1e-2))


def batch(d: Data, n: int) -> Data:
    """`n` copies of one world."""
    return tree.batch(d, n)

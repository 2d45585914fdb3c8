"""`Data`: mjData of one world as a tree."""

import dataclasses
from typing import Any, Self

from torch import Tensor

from mjtorch import tree
from mjtorch.model.access import Bound, Objects, bind
from mjtorch.model.contact import Contact


@tree.dataclass(kw_only=True)
class Data(Objects, tree.Tree):
    """State, inputs and everything computed from them, for one world (mjData). All names are MuJoCo's.

    Matrices that MuJoCo stores as 9 numbers are (3, 3) here; Jacobians and moments are dense; the contact list and the
    constraint rows have fixed sizes, and a row that is not active has `efc_D = 0`.

    Functions return new ones: `d.replace(ctrl=u)` instead of `d.ctrl = u`. Its tensors are ordinary ones, and all that
    were not replaced are those of the old `Data`: writing into one, as `d.ctrl[0] = 1` does, changes every `Data` that
    shares it, and compiled functions do not see it in what they have returned before; `d.clone()` shares nothing.

    Of many worlds (`mjtorch.batch(d, 64)`, `tree.stack([d, d])`), `len(d)` is their number and `d[i]` one of them;
    `tree.where(done, fresh, d)` chooses between worlds; `d.body(m, "torso").xpos` is for all of them. To save it,
    `torch.save(tree.state_dict(d), path)`, and `tree.load_state_dict(make_data(m), torch.load(path))`.

    State and inputs
        time () [s], qpos (nq,), qvel (nv,), act (na,), plastic (nplastic,) where plastic springs rest and rods lie,
        history (nhistory,) past controls,
        qacc_warmstart (nv,), ctrl (nu,), qfrc_applied (nv,), xfrc_applied (nbody, 6) force then torque,
        eq_active (neq,) bool, mocap_pos (nmocap, 3), mocap_quat (nmocap, 4),
        userdata (nuserdata,), which nothing here reads or changes;
        with sleeping enabled, else empty: tree_asleep (ntree,) integer, negative: awake, else the next tree of those
        that sleep together; qpos_asleep (nq,) `qpos` as the last step left it: where another is given, trees wake;
        with the flag ipc and membranes, else empty: flexvert_lambda (nflexvert,) [N] what contacts pushed vertices
        with, flexvert_conage (nflexvert,) integer, how long they have not, negative if they have at all
    Counts, as integers
        warning (7,) how often each mjtWarning was raised; CONTACTFULL adds up the contacts that found no slot,
        CNSTRFULL counts the steps of ipc that ended before the motion was done,
        solver_niter () iterations of the last solve, ncon () detected contacts,
        ne, nf, nl, nefc () active equality, friction, limit and all constraint rows;
        with sleeping enabled, else empty: tree_awake (ntree,) 1 or 0, body_awake (nbody,) mjtSleepState
    Position
        xpos (nbody, 3), xquat (nbody, 4), xmat (nbody, 3, 3), xipos (nbody, 3), ximat (nbody, 3, 3), xanchor (njnt, 3),
        xaxis (njnt, 3), geom_xpos (ngeom, 3), geom_xmat (ngeom, 3, 3), site_xpos (nsite, 3), site_xmat (nsite, 3, 3),
        cam_xpos (ncam, 3), cam_xmat (ncam, 3, 3), light_xpos (nlight, 3), light_xdir (nlight, 3),
        subtree_com (nbody, 3), cdof (nv, 6) rotation then translation, cinert (nbody, 10), crb (nbody, 10),
        ten_length (ntendon,), ten_J (ntendon, nv), actuator_length (nout,), actuator_moment (nout, nv),
        flexvert_xpos (nflexvert, 3), flexedge_length (nflexedge,),
        flexedge_J (nJfe,) in the sparsity of `flexedge_J_rownnz`, `flexedge_J_rowadr`, `flexedge_J_colind`;
        M (nC,) lower triangle in the sparsity of `M_rowadr`, `M_colind`; qLD (nv, nv) dense, lower, `M = qLD^T qLD`
    Velocity
        ten_velocity (ntendon,), flexedge_velocity (nflexedge,), actuator_velocity (nout,), cvel (nbody, 6),
        cdof_dot (nv, 6), qfrc_bias (nv,),
        qfrc_spring, qfrc_damper, qfrc_gravcomp, qfrc_fluid, qfrc_passive (nv,),
        subtree_linvel, subtree_angmom (nbody, 3)
    Forces and acceleration
        act_dot (na,), actuator_force (nout,), qfrc_actuator, qfrc_smooth, qacc_smooth, qfrc_constraint, qacc (nv,),
        energy (2,) potential and kinetic [J], sensordata (nsensordata,), qfrc_inverse (nv,) by `inverse`,
        solver_fwdinv (2,) by `compare_fwd_inv`, under the flag fwdinv,
        cacc, cfrc_int, cfrc_ext (nbody, 6) by `rne_postconstraint`, for sensors of force and torque
    Constraint rows; their type and object are static, in `m.plan.constraint`
        efc_J (nefc, nv), efc_pos, efc_margin, efc_frictionloss, efc_diagA (nefc,), efc_KBIP (nefc, 4),
        efc_D, efc_R, efc_vel, efc_aref, efc_b, efc_force (nefc,), efc_state (nefc,) integer, mjtConstraintState
    """

    @classmethod
    def fields(cls) -> tuple[dataclasses.Field, ...]:
        """The fields of this class."""
        return dataclasses.fields(cls)

    @property
    def qLDiagInv(self) -> Tensor:
        """(nv,) the inverse diagonal of D in `M = L^T D L`, of which `qLD` is `sqrt(D) L`."""
        return self.qLD.diagonal(dim1=-2, dim2=-1).square().reciprocal()

    def bind(self, m: Any, objects: Any) -> Bound:
        """Fields of objects in this `Data` and its model `m`.

        objects: what `m.body(name)` and its kin return; or objects of a `mujoco.MjSpec` or `MjModel`, one or a sequence
            of one kind.
        """
        return bind(m, self, objects)

    def __len__(self) -> int:
        """How many worlds there are."""
        if not self.time.dim():
            raise TypeError("this Data is one world, and has no length; mjtorch.batch(d, size) makes many of it")
        return self.time.shape[0]

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, worlds: Any) -> Self:
        """One world, or several, by a number, a slice, a mask or numbers along the first world axis."""
        if not self.time.dim():
            raise TypeError("this Data is one world, and has no parts; mjtorch.batch(d, size) makes many of it")
        return tree.map(lambda x: x[worlds], self)

    def _about(self) -> list[str]:
        return [f"worlds: {' x '.join(map(str, self.time.shape))}"] if self.time.dim() else []

    time: Tensor
    qpos: Tensor
    qvel: Tensor
    act: Tensor
    plastic: Tensor
    history: Tensor
    qacc_warmstart: Tensor
    ctrl: Tensor
    qfrc_applied: Tensor
    xfrc_applied: Tensor
    eq_active: Tensor
    mocap_pos: Tensor
    mocap_quat: Tensor
    userdata: Tensor
    tree_asleep: Tensor
    qpos_asleep: Tensor
    flexvert_lambda: Tensor
    flexvert_conage: Tensor

    warning: Tensor
    solver_niter: Tensor
    ncon: Tensor
    ne: Tensor
    nf: Tensor
    nl: Tensor
    nefc: Tensor
    tree_awake: Tensor
    body_awake: Tensor

    xpos: Tensor
    xquat: Tensor
    xmat: Tensor
    xipos: Tensor
    ximat: Tensor
    xanchor: Tensor
    xaxis: Tensor
    geom_xpos: Tensor
    geom_xmat: Tensor
    site_xpos: Tensor
    site_xmat: Tensor
    cam_xpos: Tensor
    cam_xmat: Tensor
    light_xpos: Tensor
    light_xdir: Tensor
    subtree_com: Tensor
    cdof: Tensor
    cinert: Tensor
    crb: Tensor
    ten_length: Tensor
    ten_J: Tensor
    flexvert_xpos: Tensor
    flexedge_length: Tensor
    flexedge_J: Tensor
    actuator_length: Tensor
    actuator_moment: Tensor
    M: Tensor
    qLD: Tensor

    ten_velocity: Tensor
    flexedge_velocity: Tensor
    actuator_velocity: Tensor
    cvel: Tensor
    cdof_dot: Tensor
    qfrc_bias: Tensor
    qfrc_spring: Tensor
    qfrc_damper: Tensor
    qfrc_gravcomp: Tensor
    qfrc_fluid: Tensor
    qfrc_passive: Tensor
    subtree_linvel: Tensor
    subtree_angmom: Tensor

    act_dot: Tensor
    actuator_force: Tensor
    qfrc_actuator: Tensor
    qfrc_smooth: Tensor
    qacc_smooth: Tensor
    qfrc_constraint: Tensor
    qacc: Tensor
    qfrc_inverse: Tensor
    solver_fwdinv: Tensor
    energy: Tensor
    sensordata: Tensor
    cacc: Tensor
    cfrc_int: Tensor
    cfrc_ext: Tensor

    contact: Contact
    efc_J: Tensor
    efc_pos: Tensor
    efc_margin: Tensor
    efc_frictionloss: Tensor
    efc_diagA: Tensor
    efc_KBIP: Tensor
    efc_D: Tensor
    efc_R: Tensor
    efc_vel: Tensor
    efc_aref: Tensor
    efc_b: Tensor
    efc_force: Tensor
    efc_state: Tensor

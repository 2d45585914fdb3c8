"""`Contact`: the contact list as arrays."""

from torch import Tensor

from mjtorch import tree


@tree.dataclass(kw_only=True)
class Contact(tree.Tree):
    """Contact slots (mjContact); `n = m.plan.collision.ncon` slots, grouped by `dim`, each group in C's order.

    A slot whose `detected` is False holds no contact (its geoms may be far apart, or it may be spare capacity): its
    frame is zero, its other numbers are finite but mean nothing to the physics. A detected contact is active, that is,
    makes constraint rows if any dof moves its geoms apart, where `dist < includemargin`; otherwise it lies in the gap
    and only reports, unless its geoms stick together: then it pulls, without friction, as if its `dim` were 1.
    What touches in passive contacts of flexes is pushed apart by springs: they make no rows.
    One that is `speculative` will come within the time step, and is active whatever its distance.

    dist: (n,) [m] distance between nearest points, negative in penetration
    pos: (n, 3) [m] midpoint between the geoms
    frame: (n, 3, 3) rows: normal (from geom[0] to geom[1]), tangent 1, tangent 2
    includemargin: (n,) [m]
    friction: (n, 5) tangent 1, 2, spin, roll 1, 2
    solref, solreffriction: (n, 2)
    solimp: (n, 5)
    geom: (n, 2) geom ids, -1 in an empty slot, and where a flex touches
    flex, elem, vert: (n, 2) the flex, and which of its elements or vertices touches, -1 where that is a geom; (0, 2) in
        models whose flexes touch nothing
    detected: (n,) bool
    speculative: (n,) bool; (0,) in models that foresee no contacts
    dim: (n,) static, 1, 3, 4 or 6
    """

    dist: Tensor
    pos: Tensor
    frame: Tensor
    includemargin: Tensor
    friction: Tensor
    solref: Tensor
    solreffriction: Tensor
    solimp: Tensor
    geom: Tensor
    flex: Tensor
    elem: Tensor
    vert: Tensor
    detected: Tensor
    speculative: Tensor
    dim: tuple[int, ...] = tree.field(static=True)

    @property
    def geom1(self) -> Tensor:
        """(n,) int64, the first geom, -1 in an empty slot, or if that is a flex."""
        return self.geom[..., 0]

    @property
    def geom2(self) -> Tensor:
        """(n,) int64, the second geom, -1 in an empty slot, or if that is a flex."""
        return self.geom[..., 1]

    @property
    def active(self) -> Tensor:
        """(n,) bool: makes constraint rows, even if its geoms do not stick together."""
        within = self.dist < self.includemargin
        return self.detected & (within | self.speculative if self.speculative.shape[-1] else within)

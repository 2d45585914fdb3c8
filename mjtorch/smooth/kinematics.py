"""Forward kinematics: poses of bodies, joints, geoms, sites and cameras (mj_kinematics)."""

import torch
from torch import Tensor

from mjtorch import tree
from mjtorch.math import quaternion as quat
from mjtorch.math.vector import basis
from mjtorch.model import Data, Model


@tree.dataclass
class Pose(tree.Tree):
    """Where a frame is and how it is turned. pos: (..., 3) [m]; quat: (..., 4) unit quaternion (w, x, y, z)."""

    pos: Tensor
    quat: Tensor

    def __getitem__(self, index: Tensor) -> "Pose":
        """The poses at `index` of the first axis."""
        return Pose(self.pos[index], self.quat[index])


def compose(parent: Pose, child: Pose) -> Pose:
    """Re-express `child`, given in `parent`, in the frame that `parent` is given in."""
    return Pose(parent.pos + quat.rotate(child.pos, parent.quat), quat.mul(parent.quat, child.quat))


def chain(local: Pose, hops: tuple[Tensor, ...]) -> Pose:
    """World poses of links from their local ones by pointer jumping: ceil(log2(depth)) rounds for all links at once.

    After round k a link's pose is relative to the link 2^k above it; the world is its own parent and stays identity.
    """
    for hop in hops:
        local = compose(local[hop], local)
    return local


def local_poses(m: Model, d: Data) -> Pose:
    """Each link's pose in its parent link: the world, free joints, body frames, then the joints that turn and slide."""
    p = m.plan.kinematics
    identity = basis(d.qpos, 1, 0, 0, 0)[None]
    pos, orientation = [d.qpos.new_zeros(1, 3)], [identity]

    def add(link_pos: Tensor, link_quat: Tensor) -> None:
        pos.append(link_pos)
        orientation.append(link_quat)

    if p.free_qpos.shape[0]:
        free = d.qpos[p.free_qpos]
        add(free[:, :3], quat.normalize(free[:, 3:]))
    if p.frame_source.shape[0]:
        frame_pos, frame_quat = m.body_pos, m.body_quat
        if m.nmocap:
            frame_pos = torch.cat([frame_pos, d.mocap_pos])
            frame_quat = torch.cat([frame_quat, quat.normalize(d.mocap_quat)])
        add(frame_pos[p.frame_source], frame_quat[p.frame_source])
    turns = []
    if p.hinge_joint.shape[0]:
        turns.append(quat.from_axis_angle(m.jnt_axis[p.hinge_joint], (d.qpos - m.qpos0)[p.hinge_qpos]))
    if p.ball_qpos.shape[0]:
        turns.append(quat.normalize(d.qpos[p.ball_qpos]))
    if turns:
        turn, anchor = torch.cat(turns), m.jnt_pos[p.turning_joint]
        add(anchor - quat.rotate(anchor, turn), turn)  # the anchor stays put
    if p.slide_joint.shape[0]:
        shift = (d.qpos - m.qpos0)[p.slide_qpos]
        add(m.jnt_axis[p.slide_joint] * shift[:, None], identity.expand(shift.shape[0], 4))
    return Pose(torch.cat(pos), torch.cat(orientation))[p.link_order]


def kinematics(m: Model, d: Data) -> Data:
    """Poses in the world (mj_kinematics; computation/index.rst, "Forward kinematics").

    Sets xpos, xquat, xmat, xipos, ximat, xanchor, xaxis, geom_xpos, geom_xmat, site_xpos, site_xmat, and cam_xpos,
    cam_xmat as if every camera were fixed to its body. Quaternions in `qpos` and `mocap_quat` need not be normalized.
    """
    p = m.plan.kinematics
    links = chain(local_poses(m, d), p.hops)
    xpos, xquat = links.pos[p.body_link], quat.normalize(links.quat[p.body_link])

    held = links[p.joint_link]
    arms = quat.rotate(torch.cat([m.jnt_pos, m.jnt_axis]), held.quat)
    xanchor, xaxis = held.pos[: m.njnt] + arms[: m.njnt], arms[m.njnt :]

    attached = Pose(
        torch.cat([m.body_ipos, m.geom_pos, m.site_pos, m.cam_pos]),
        torch.cat([m.body_iquat, m.geom_quat, m.site_quat, m.cam_quat]),
    )
    placed = compose(Pose(xpos, xquat)[p.carrier], attached[p.carried] if p.still.shape[0] else attached)
    xmat, mat = quat.to_mat(torch.cat([xquat, placed.quat])).split([m.nbody, len(placed.pos)])
    pos = placed.pos
    if p.still.shape[0]:
        still = attached[p.still]
        pos = torch.cat([pos, still.pos])[p.attached_source]
        mat = torch.cat([mat, quat.to_mat(still.quat)])[p.attached_source]
    counts = [m.nbody, m.ngeom, m.nsite, m.ncam]
    xipos, geom_xpos, site_xpos, cam_xpos = pos.split(counts)
    ximat, geom_xmat, site_xmat, cam_xmat = mat.split(counts)
    return d.replace(
        xpos=xpos,
        xquat=xquat,
        xmat=xmat,
        xipos=xipos,
        ximat=ximat,
        xanchor=xanchor,
        xaxis=xaxis,
        geom_xpos=geom_xpos,
        geom_xmat=geom_xmat,
        site_xpos=site_xpos,
        site_xmat=site_xmat,
        cam_xpos=cam_xpos,
        cam_xmat=cam_xmat,
    )

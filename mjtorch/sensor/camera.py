"""Pinhole and orthographic cameras: where their pixels look, and where points appear (mju_camIntrinsics)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mjtorch.math.vector import basis, normalize
from mjtorch.model import Data, Model


def focal_length(m: Model, cam_id: Tensor) -> Tensor:
    """Focal lengths (n, 2) [pixel] of cameras: `cam_intrinsic` if the camera has a sensor size, else by `cam_fovy`."""
    resolution, sensor = m.cam_resolution[cam_id], m.cam_sensorsize[cam_id]
    given = (sensor != 0).all(-1, keepdim=True)
    by_size = m.cam_intrinsic[cam_id, :2] / torch.where(given, sensor, 1.0) * resolution
    by_angle = 0.5 / torch.tan(m.cam_fovy[cam_id] * (math.pi / 360)) * resolution[:, 1]
    return torch.where(given, by_size, by_angle[:, None])


def principal_point(m: Model, cam_id: Tensor) -> Tensor:
    """Where (n, 2) [pixel] the optical axes of cameras meet their images."""
    resolution, sensor = m.cam_resolution[cam_id], m.cam_sensorsize[cam_id]
    given = (sensor != 0).all(-1, keepdim=True)
    by_size = m.cam_intrinsic[cam_id, 2:] / torch.where(given, sensor, 1.0) * resolution
    return torch.where(given, by_size, 0.5 * resolution)


def perspective_rays(m: Model, d: Data, cam_id: Tensor, pixel: Tensor) -> tuple[Tensor, Tensor]:
    """Origins and unit directions (n, p, 3) of the rays through the pixels `pixel` (p, 2) of n pinhole cameras."""
    x, y = ((pixel - principal_point(m, cam_id)[:, None]) / focal_length(m, cam_id)[:, None]).unbind(-1)
    local = torch.stack([x, -y, -torch.ones_like(x)], dim=-1)
    direction, _ = normalize(local @ d.cam_xmat[cam_id].mT, basis(local, 0, 0, -1))
    return d.cam_xpos[cam_id][:, None].expand_as(direction), direction


def orthographic_rays(m: Model, d: Data, cam_id: Tensor, pixel: Tensor) -> tuple[Tensor, Tensor]:
    """The same for orthographic cameras, whose `cam_fovy` is the height [m] of what they see, and also the width."""
    half = 0.5 * m.cam_resolution[cam_id][:, None]
    x, y = ((pixel - half) / half * (0.5 * m.cam_fovy[cam_id])[:, None, None]).unbind(-1)
    mat = d.cam_xmat[cam_id]
    origin = d.cam_xpos[cam_id][:, None] + F.pad(torch.stack([x, -y], dim=-1), (0, 1)) @ mat.mT
    return origin, -mat[:, None, :, 2].expand_as(origin)

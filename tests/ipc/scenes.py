"""Membranes with the flag `ipc`, and what they fall on."""


def scene(body: str, option: str = "", asset: str = "", end: str = "") -> str:
    """MJCF of a model with the flag."""
    return f"""
<mujoco>
  <option integrator="discrete" tolerance="1e-12" ls_tolerance="1e-6" {option}><flag ipc="enable"/></option>
  {asset}
  <worldbody>{body}</worldbody>
  {end}
</mujoco>"""


# On a ball and a floor, held by its edges; it may touch itself.
BALL = scene("""
  <geom type="plane" size="1 1 .1" pos="0 0 -.03"/>
  <geom size=".05" pos=".02 .01 -.055"/>
  <flexcomp name="cloth" type="grid" count="3 3 1" spacing=".07 .07 .1" dim="2" radius=".004" mass=".05"
    euler="0 5 20">
    <edge equality="true"/>
  </flexcomp>""")
# An elastic one on the edges of a box and on a capsule, and another one that falls on it.
PILE = scene("""
  <geom type="box" size=".1 .03 .05" pos=".02 .01 0" euler="10 20 30"/>
  <geom type="capsule" size=".03 .1" pos=".05 .1 0" euler="90 10 0"/>
  <flexcomp name="low" type="grid" count="3 3 1" spacing=".08 .08 .1" dim="2" pos=".01 .02 .105"
    radius=".003" mass=".05">
    <elasticity young="1e5" poisson=".2" thickness="2e-3" damping=".01" elastic2d="both"/>
    <contact selfcollide="none"/>
  </flexcomp>
  <flexcomp name="high" type="grid" count="3 2 1" spacing=".07 .08 .1" dim="2" pos=".013 .025 .12" euler="3 2 20"
    radius=".002" mass=".03">
    <edge equality="true"/>
    <contact selfcollide="none"/>
  </flexcomp>""")
# One that stands on its edge, and folds.
FOLD = scene(
    """
  <geom type="plane" size="1 1 .1"/>
  <flexcomp name="cloth" type="grid" count="2 5 1" spacing=".05 .05 .1" dim="2" pos="0 0 .11" euler="80 0 0"
    radius=".003" mass=".05">
    <edge equality="true"/>
  </flexcomp>""",
    'timestep=".003"',
)
# On the hull of a mesh.
GEM = scene(
    """
  <geom type="mesh" mesh="gem" euler="10 20 30"/>
  <flexcomp name="cloth" type="grid" count="3 3 1" spacing=".05 .05 .1" dim="2" pos=".01 .02 .1" radius=".004"
    mass=".05">
    <edge equality="true"/>
    <contact selfcollide="none"/>
  </flexcomp>""",
    asset="""<asset>
    <mesh name="gem" vertex="0 0 .08  .07 0 0  -.03 .06 0  -.04 -.06 .01  0 0 -.05  .02 .05 .05"/>
  </asset>""",
)


def net(columns: int, rows: int, spacing: float) -> tuple[str, str]:
    """Bodies of the vertices of a membrane, and the flex, of which the first column is pinned to the body `cart`."""
    place = [(spacing * i, spacing * j) for i in range(columns) for j in range(rows)]
    slides = "".join(f'<joint type="slide" axis="{axis}"/>' for axis in ("1 0 0", "0 1 0", "0 0 1"))
    inertia = '<inertial pos="0 0 0" mass=".004" diaginertia="1e-6 1e-6 1e-6"/>'
    bodies = [
        f'<body name="v{k}" pos="{x} {y} .1">{slides}{inertia}</body>' for k, (x, y) in enumerate(place) if k >= rows
    ]
    names = ["cart"] * rows + [f"v{k}" for k in range(rows, len(place))]
    local = "  ".join([f"0 {y} 0" for _, y in place[:rows]] + ["0 0 0"] * (len(place) - rows))
    corner = [rows * i + j for i in range(columns - 1) for j in range(rows - 1)]
    element = "  ".join(f"{k} {k + 1} {k + rows}  {k + 1} {k + rows + 1} {k + rows}" for k in corner)
    flex = f"""
    <flex name="net" dim="2" radius=".004" body="{" ".join(names)}" vertex="{local}" element="{element}">
      <edge stiffness="0"/>
      <contact contype="3" conaffinity="3" selfcollide="none"/>
    </flex>"""
    return "".join(bodies), flex


VERTICES, FLEX = net(4, 3, 0.07)
# A net on a cart that drives, and what falls on it: contacts of what moves have friction, and rows of their own.
NET = scene(
    f"""
  <geom type="box" size=".02 .2 .02" pos=".12 .1 .065" contype="2" conaffinity="2"/>
  <body name="ball" pos=".15 .08 .16"><freejoint/><geom size=".05" mass=".05"/><site name="core" size=".06"/></body>
  <body name="arm" pos=".3 0 .2">
    <joint name="swing" axis="0 1 0" damping=".1" range="-60 20"/>
    <geom type="capsule" size=".02 .08" euler="0 90 0" pos=".05 0 -.05"/>
  </body>
  <body name="cart" pos="0 0 .1">
    <joint name="drive" type="slide" axis="1 0 .2" damping="1"/>
    <geom name="hull" size=".02" mass=".3" contype="0" conaffinity="0"/>
  </body>
  {VERTICES}""",
    end=f"""<deformable>{FLEX}</deformable>
  <equality><flex flex="net"/></equality>
  <actuator><motor joint="drive" gear="3"/></actuator>
  <sensor>
    <accelerometer site="core"/><touch site="core"/><jointlimitfrc joint="swing"/>
    <framelinacc objtype="body" objname="cart"/>
  </sensor>""",
)

FLOOR = '<geom type="plane" size="1 1 .1"/>'
SHEET = """
  <flexcomp name="cloth" type="grid" count="4 4 1" spacing=".05 .05 .1" dim="2" pos=".01 .02 .15" radius=".004"
    mass=".05" euler="2 3 10">
    <edge equality="true"/>
    <contact selfcollide="none"/>
  </flexcomp>"""
# A solid that asks for passive contacts.
SOLID = """
  <flexcomp name="solid" type="grid" count="2 2 2" spacing=".05 .05 .05" dim="3" pos="0 0 .04" radius=".005" mass=".2"
    euler="3 2 0">
    <elasticity young="2e4" poisson=".3" damping=".01"/>
    <contact selfcollide="none" passive="true"/>
  </flexcomp>"""
# A bullet, and one that flies on to a plate that falls, beside a sheet.
SHOT = scene(
    f"""
  {FLOOR}
  <body pos="0 0 .25"><freejoint/><geom size=".02" mass=".05"/></body>
  <body pos=".3 0 .2"><freejoint/><geom type="box" size=".02 .02 .005" mass=".05"/></body>
  <body pos=".3 0 .06"><freejoint/><geom type="box" size=".04 .04 .002" mass=".05"/></body>
  {SHEET}"""
)

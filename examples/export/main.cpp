// Simulate a few worlds and print where they end: `./example [WORLDS] [STEPS]`.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "step.h"

int main(int argc, char** argv) {
  int worlds = argc > 1 ? atoi(argv[1]) : 3, steps = argc > 2 ? atoi(argv[2]) : 100;
  int nq = mjtorch_nq(), nv = mjtorch_nv(), nu = mjtorch_nu(), na = mjtorch_na();
  std::vector<mjtorch_real> qpos(worlds * nq), qvel(worlds * nv), act(worlds * na), warmstart(worlds * nv), ctrl(worlds * nu);

  mjtorch_worlds w = {};  // what stays NULL keeps its initial value
  w.qpos = qpos.data();
  w.qvel = qvel.data();
  w.act = act.data();
  w.qacc_warmstart = warmstart.data();
  w.ctrl = ctrl.data();

  mjtorch_reset(0, worlds, &w);
  for (int i = 0; i < worlds; ++i) qvel[i * nv] = 0.1 * (i % 8);  // not all worlds start alike
  for (int k = 0; k < steps; ++k) {
    for (int i = 0; i < worlds * nu; ++i) ctrl[i] = 0.3 * std::sin(0.05 * k + i % nu);
    if (int failed = mjtorch_step(0, worlds, &w)) return fprintf(stderr, "mjtorch_step: %d\n", failed), 1;
  }
  for (int i = 0; i < worlds * nq; ++i) printf("%.17g%c", (double)qpos[i], (i + 1) % nq ? ' ' : '\n');
}

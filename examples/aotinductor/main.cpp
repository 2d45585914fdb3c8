// Simulate the worlds of a package and print where they end: `./example step.pt2 WORLDS NQ NV NA NU STEPS`.
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 8) return fprintf(stderr, "usage: %s step.pt2 WORLDS NQ NV NA NU STEPS\n", argv[0]), 2;
  int64_t n[6];
  for (int i = 0; i < 6; ++i) n[i] = atoi(argv[2 + i]);
  auto [worlds, nq, nv, na, nu, steps] = n;
  c10::InferenceMode inference;
  torch::inductor::AOTIModelPackageLoader step(argv[1]);

  auto zeros = [worlds = worlds](int64_t size) { return at::zeros({worlds, size}, at::kDouble); };
  at::Tensor qvel = at::arange(worlds, at::kDouble).remainder(8).mul(0.1).unsqueeze(1).expand({worlds, nv}).clone();
  std::vector<at::Tensor> state = {zeros(nq), qvel, zeros(na), zeros(nv)};  // not all worlds start alike
  for (int k = 0; k < steps; ++k) {
    at::Tensor ctrl = at::full({worlds, nu}, 0.3 * std::sin(0.05 * k), at::kDouble);
    std::vector<at::Tensor> in = {ctrl};
    in.insert(in.end(), state.begin(), state.end());
    state = step.run(in);
  }
  const double* qpos = state[0].data_ptr<double>();
  for (int64_t i = 0; i < worlds * nq; ++i) printf("%.17g%c", qpos[i], (i + 1) % nq ? ' ' : '\n');
}

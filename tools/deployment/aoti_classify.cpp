// Classifies an image by a package of `export.py --format aoti`, without Python. The image is a PPM
// file (P6, which PIL and ImageMagick write) of the size that the package takes. With the libtorch
// that made the package, at $TORCH:
//   g++ -std=c++17 aoti_classify.cpp -o aoti_classify -I$TORCH/include
//       -I$TORCH/include/torch/csrc/api/include -L$TORCH/lib -Wl,-rpath,$TORCH/lib -ltorch
//       -ltorch_cpu -lc10
//   ./aoti_classify classifier.aoti.pt2 image.ppm
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

at::Tensor read_ppm(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string magic;
  int64_t width = 0, height = 0, largest = 0;
  file >> magic >> width >> height >> largest;
  file.get();
  if (!file || magic != "P6" || largest != 255) throw std::runtime_error(path + " is no P6 image");
  std::vector<char> bytes(height * width * 3);
  if (!file.read(bytes.data(), bytes.size())) throw std::runtime_error(path + " is cut off");
  const at::Tensor pixels = at::from_blob(bytes.data(), {1, height, width, 3}, at::kByte);
  return pixels.permute({0, 3, 1, 2}).to(at::kFloat).contiguous();  // (1, 3, H, W), 0 to 255
}

int main(int count, char** arguments) try {
  if (count != 3) throw std::runtime_error("usage: aoti_classify PACKAGE IMAGE.ppm");
  const c10::InferenceMode no_gradients;
  torch::inductor::AOTIModelPackageLoader model(arguments[1]);
  const at::Tensor scores = model.run({read_ppm(arguments[2])})[0][0];
  const auto [values, labels] = scores.topk(std::min<int64_t>(5, scores.numel()));
  for (int64_t i = 0; i < labels.numel(); ++i)
    std::cout << labels[i].item<int64_t>() << ' ' << values[i].item<float>() << '\n';
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

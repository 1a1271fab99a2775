#include "tests/simulated_cuda/tests/support.h"

#include <random>
#include <thread>

namespace simulated_cuda {

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> result(count);
  for (float& value : result) value = static_cast<float>(static_cast<double>(generator()) / 2147483648.0 - 1.0);
  return result;
}

void run_ranks(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&body, rank] {
      ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace simulated_cuda

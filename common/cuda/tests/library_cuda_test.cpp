// The CUDA library itself. Tests of what it computes are skipped where there is no device; these make sure that it is a device
// that is missing there, and not a library that cannot be opened.
#include <gtest/gtest.h>

#include "common/cuda/cuda_backend.h"
#include "tests/support/refusal.h"

namespace escalera {
namespace {

TEST(cuda_Library, OpensWhateverElseIsMissing) {
  const CudaSearch& found = find_cuda();
  if (machine_has_gpu()) {
    EXPECT_TRUE(found.backend) << found.missing;
  }
  for (const char* fault : {"there is no /", "cannot be loaded", "is not Escalera's"}) {
    EXPECT_FALSE(mentions(found.missing, {fault})) << found.missing;
  }
}

TEST(cuda_Library, IsThereOrSaysWhatIsMissing) {
  if (find_cuda().backend) {
    EXPECT_GE(cuda_backend().device_count(), 1);
    EXPECT_GT(cuda_backend().device_memory(0), 0);
  } else {
    EXPECT_TRUE(mentions(refusal([] { cuda_backend(); }), {"--device cuda: ", find_cuda().missing}));
    EXPECT_NE(find_cuda().missing, "");
  }
}

}  // namespace
}  // namespace escalera

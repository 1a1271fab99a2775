// Stands in for gemm_onednn.cpp where oneDNN was not found: Eigen multiplies. scripts/setup.sh installs oneDNN on Debian and
// Ubuntu (libdnnl-dev).
#include "common/ops/cpu/gemm.h"

namespace escalera::cpu {

std::unique_ptr<Gemm> make_onednn_gemm(std::unique_ptr<Gemm> fallback) { return fallback; }

std::string onednn_description() { return ""; }

}  // namespace escalera::cpu

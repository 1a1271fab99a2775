#include "common/core/dtype.h"

namespace escalera {

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::float32: return "float32";
    case DType::float64: return "float64";
    case DType::bfloat16: return "bfloat16";
  }
  return "unknown";
}

}  // namespace escalera

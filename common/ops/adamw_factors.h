// What AdamW does to each element, worked out once per call for all backends.
// defines: AdamWFactors, adamw_factors()
//
// Units compiled for AVX-512 and kernels compiled by nvcc read this header: plain types and declarations only.
#pragma once

namespace escalera {

struct AdamWSettings;

/// The update m / c1 / (sqrt(v / c2) + epsilon), with corrections c = 1 - beta^step, has no division left but one.
template <class Wide>
struct AdamWFactors {
  Wide beta1, beta2;
  Wide gradient_to_first;   // (1 - beta1) * gradient_scale
  Wide gradient_to_second;  // (1 - beta2) * gradient_scale^2
  Wide second_correction;   // 1 / sqrt(1 - beta2^step)
  Wide step_size;           // learning_rate / (1 - beta1^step)
  Wide epsilon;
  Wide decay;  // 1 - learning_rate * weight_decay
};

/// For float and double.
template <class Wide>
AdamWFactors<Wide> adamw_factors(const AdamWSettings& settings);

}  // namespace escalera

#include "common/ops/adamw_factors.h"

#include <cmath>

#include "common/ops/ops.h"

namespace escalera {

template <class Wide>
AdamWFactors<Wide> adamw_factors(const AdamWSettings& settings) {
  const double step = static_cast<double>(settings.step);
  const double first_correction = 1 - std::pow(settings.beta1, step);
  const double second_correction = 1 - std::pow(settings.beta2, step);
  const double scale = settings.gradient_scale;
  return {
      .beta1 = static_cast<Wide>(settings.beta1),
      .beta2 = static_cast<Wide>(settings.beta2),
      .gradient_to_first = static_cast<Wide>((1 - settings.beta1) * scale),
      .gradient_to_second = static_cast<Wide>((1 - settings.beta2) * scale * scale),
      .second_correction = static_cast<Wide>(1 / std::sqrt(second_correction)),
      .step_size = static_cast<Wide>(settings.learning_rate / first_correction),
      .epsilon = static_cast<Wide>(settings.epsilon),
      .decay = static_cast<Wide>(1 - settings.learning_rate * settings.weight_decay),
  };
}

template AdamWFactors<float> adamw_factors(const AdamWSettings& settings);
template AdamWFactors<double> adamw_factors(const AdamWSettings& settings);

}  // namespace escalera

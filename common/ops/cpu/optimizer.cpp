#include <cmath>

#include "common/ops/cpu/cpu_ops.h"
#include "common/ops/cpu/tensor_access.h"

namespace escalera::cpu {

void CpuOps::adamw(const Tensor& master, const Tensor& gradient, const Tensor& first_moment,
                   const Tensor& second_moment, const Tensor& weights, const AdamWSettings& settings) {
  const Index count = master.size();
  const DType wide = accumulation_dtype(master.dtype());
  check(master, count, wide, "adamw: master");
  check(gradient, count, wide, "adamw: gradient");
  check(first_moment, count, wide, "adamw: first_moment");
  check(second_moment, count, wide, "adamw: second_moment");
  const DType weight_type = weights.empty() ? wide : weights.dtype();
  if (!weights.empty()) check(weights, count, weight_type, "adamw: weights");
  require(accumulation_dtype(weight_type) == wide, "adamw: weights of type {} with masters of type {}",
          to_string(weight_type), to_string(wide));
  require(settings.step >= 1, "adamw: steps count from 1, not {}", settings.step);

  // The update m / c1 / (sqrt(v / c2) + epsilon), with corrections c = 1 - beta^step, has no division left but one.
  const double step = static_cast<double>(settings.step);
  const double first_correction = 1 - std::pow(settings.beta1, step);
  const double second_correction = 1 - std::pow(settings.beta2, step);
  const double scale = settings.gradient_scale;
  dispatch(weight_type, [&]<class T>() {
    using Wide = Accumulator<T>;
    const AdamWFactors<Wide> factors{
        .beta1 = static_cast<Wide>(settings.beta1),
        .beta2 = static_cast<Wide>(settings.beta2),
        .gradient_to_first = static_cast<Wide>((1 - settings.beta1) * scale),
        .gradient_to_second = static_cast<Wide>((1 - settings.beta2) * scale * scale),
        .second_correction = static_cast<Wide>(1 / std::sqrt(second_correction)),
        .step_size = static_cast<Wide>(settings.learning_rate / first_correction),
        .epsilon = static_cast<Wide>(settings.epsilon),
        .decay = static_cast<Wide>(1 - settings.learning_rate * settings.weight_decay),
    };
    auto* rounded = raw<T>(weights);
    parallel(count, 4, [&](Index begin, Index end, int) {
      table<T>().adamw(raw<Wide>(master) + begin, raw<Wide>(gradient) + begin, raw<Wide>(first_moment) + begin,
                       raw<Wide>(second_moment) + begin, rounded ? rounded + begin : nullptr, end - begin, factors);
    });
  });
}

void CpuOps::sgd(const Tensor& master, const Tensor& gradient, const Tensor& weights, double learning_rate,
                 double weight_decay, double gradient_scale) {
  const Index count = master.size();
  const DType wide = accumulation_dtype(master.dtype());
  check(master, count, wide, "sgd: master");
  check(gradient, count, wide, "sgd: gradient");
  const DType weight_type = weights.empty() ? wide : weights.dtype();
  if (!weights.empty()) check(weights, count, weight_type, "sgd: weights");
  require(accumulation_dtype(weight_type) == wide, "sgd: weights of type {} with masters of type {}",
          to_string(weight_type), to_string(wide));
  dispatch(weight_type, [&]<class T>() {
    using Wide = Accumulator<T>;
    auto* rounded = raw<T>(weights);
    parallel(count, 2, [&](Index begin, Index end, int) {
      table<T>().sgd(raw<Wide>(master) + begin, raw<Wide>(gradient) + begin, rounded ? rounded + begin : nullptr,
                     end - begin, static_cast<Wide>(1 - learning_rate * weight_decay),
                     static_cast<Wide>(learning_rate * gradient_scale));
    });
  });
}

}  // namespace escalera::cpu

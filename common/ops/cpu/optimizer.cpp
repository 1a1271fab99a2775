#include "common/ops/checks.h"
#include "common/ops/cpu/cpu_ops.h"
#include "common/ops/cpu/tensor_access.h"

namespace escalera::cpu {

void CpuOps::adamw(const Tensor& master, const Tensor& gradient, const Tensor& first_moment,
                   const Tensor& second_moment, const Tensor& weights, const AdamWSettings& settings) {
  const Index count = master.size();
  dispatch(check_adamw(master, gradient, first_moment, second_moment, weights, settings), [&]<class T>() {
    using Wide = Accumulator<T>;
    const AdamWFactors<Wide> factors = adamw_factors<Wide>(settings);
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
  dispatch(check_sgd(master, gradient, weights), [&]<class T>() {
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

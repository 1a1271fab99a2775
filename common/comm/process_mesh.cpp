#include "common/comm/process_mesh.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <vector>

namespace escalera {
namespace {

constexpr std::array<std::string_view, 4> axis_names = {"tp", "cp", "pp", "dp"};

std::array<int, 4> sizes_by_axis(const MeshSizes& sizes) {
  return {sizes.tp, sizes.cp, sizes.pp, sizes.dp};
}

/// Positions in axis_names, fastest axis first.
std::vector<std::size_t> parse_order(const std::string& order) {
  std::vector<std::size_t> axes;
  std::string_view rest = order;
  bool good = true;
  while (good) {
    const std::size_t comma = rest.find(',');
    const auto axis = std::find(axis_names.begin(), axis_names.end(), rest.substr(0, comma));
    const auto position = static_cast<std::size_t>(axis - axis_names.begin());
    good = axis != axis_names.end() && std::find(axes.begin(), axes.end(), position) == axes.end();
    axes.push_back(position);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  require<UsageError>(
      good && axes.size() == axis_names.size(),
      "mesh order \"{}\" must name each of tp, cp, pp and dp once, fastest first, for example "
      "tp,cp,pp,dp",
      order);
  return axes;
}

std::string list_sizes(const MeshSizes& sizes) {
  return fmt::format("tp {}, cp {}, pp {}, dp {}", sizes.tp, sizes.cp, sizes.pp, sizes.dp);
}

/// What to do about tp * cp * pp * dp != world.
std::string suggest(const MeshSizes& sizes, int world_size) {
  const int without_dp = sizes.tp * sizes.cp * sizes.pp;
  if (world_size % without_dp == 0) return fmt::format("dp {} would fit", world_size / without_dp);
  const int fitting = world_size / without_dp * without_dp;
  std::string text = fmt::format("run {} ranks (dp {})", without_dp * sizes.dp, sizes.dp);
  if (fitting > 0 && fitting != without_dp * sizes.dp) {
    text = fmt::format("run {} ranks (dp {}) or {}", fitting, fitting / without_dp, text.substr(4));
  }
  // The largest tp that works with everything else as it is.
  for (int tp = sizes.tp; tp >= 1; --tp) {
    const int rest = tp * sizes.cp * sizes.pp;
    if (world_size % rest == 0) return text + fmt::format(", or use tp {} with dp {}", tp, world_size / rest);
  }
  return text;
}

}  // namespace

void ProcessMesh::validate(const MeshSizes& sizes, int world_size, const std::string& order) {
  parse_order(order);
  const std::array<std::pair<std::string_view, int>, 5> degrees = {
      {{"tp", sizes.tp}, {"cp", sizes.cp}, {"pp", sizes.pp}, {"dp", sizes.dp}, {"ep", sizes.ep}}};
  for (const auto& [name, degree] : degrees) {
    require<UsageError>(degree >= 1,
                        "{} is {}, but every degree must be at least 1 ({}, ep {}; {} ranks); use {} 1", name,
                        degree, list_sizes(sizes), sizes.ep, world_size, name);
  }
  // In 64 bits: absurd degrees must not wrap around to something that looks right.
  const Index product = Index{sizes.tp} * sizes.cp * sizes.pp;
  require<UsageError>(product <= 1'000'000 && product * sizes.dp <= 1'000'000'000,
                      "{} are more ranks than anyone has", list_sizes(sizes));
  require<UsageError>(sizes.world() == world_size, "{} make {} ranks, but {} {} running; {}",
                      list_sizes(sizes), sizes.world(), world_size, world_size == 1 ? "is" : "are",
                      suggest(sizes, world_size));
  const int data_ranks = sizes.cp * sizes.dp;
  require<UsageError>(data_ranks % sizes.ep == 0,
                      "ep {} must divide cp * dp = {} ({}; {} ranks); ep {} would fit", sizes.ep, data_ranks,
                      list_sizes(sizes), world_size, std::gcd(sizes.ep, data_ranks));
}

ProcessMesh::ProcessMesh(Communicator& world, const MeshSizes& sizes, const std::string& order)
    : world_(world), sizes_(sizes) {
  validate(sizes, world.size(), order);
  const std::array<int, 4> degrees = sizes_by_axis(sizes);
  std::array<int, 4> place{};  // this rank's coordinates: tp, cp, pp, dp
  int rest = world.rank();
  for (const std::size_t axis : parse_order(order)) {
    place[axis] = rest % degrees[axis];
    rest /= degrees[axis];
  }

  // A group along some axes: ranks whose other coordinates agree. `inside` numbers them; any number that is the same inside
  // and differs between groups can be the color, so we take the coordinates with those of the group set to zero.
  const auto number = [&](const std::array<int, 4>& coordinates) {
    int value = 0;
    for (std::size_t axis = 0; axis < degrees.size(); ++axis)
      value = value * degrees[axis] + coordinates[axis];
    return value;
  };
  const auto along = [&](std::size_t axis) {
    std::array<int, 4> others = place;
    others[axis] = 0;
    return world.split(number(others), place[axis], std::string(axis_names[axis]));
  };
  tp_ = along(0);
  cp_ = along(1);
  pp_ = along(2);
  dp_ = along(3);

  // Dense parameters are alike, and experts are dealt out, over cp and dp together.
  const int data_rank = place[1] + sizes.cp * place[3];
  const int data_ranks = sizes.cp * sizes.dp;
  const int model_part = place[0] + sizes.tp * place[2];
  dp_cp_ = world.split(model_part, data_rank, "dp_cp");
  ep_ = world.split(model_part * data_ranks + data_rank / sizes.ep, data_rank % sizes.ep, "ep");
  expert_dp_ = world.split(model_part * data_ranks + data_rank % sizes.ep, data_rank / sizes.ep, "expert_dp");
}

}  // namespace escalera

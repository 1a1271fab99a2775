// The grid of ranks: which ranks form which groups, and what is refused.
#include "common/comm/process_mesh.h"

#include <gtest/gtest.h>

#include "common/comm/tests/collective_checks.h"

namespace escalera {
namespace {

/// World ranks of the members of `group`, in its order.
std::vector<int> members(Communicator& world, Communicator& group) {
  std::vector<int> ranks;
  for (const std::string& text : group.gather_strings(std::to_string(world.rank())))
    ranks.push_back(std::stoi(text));
  return ranks;
}

TEST(ProcessMesh, PutsTensorParallelRanksSideBySide) {
  run_ranks(24, [](Communicator& world) {
    ProcessMesh mesh(world, {2, 3, 2, 2, 3});
    const auto groups = [&](Communicator& group) { return members(world, group); };
    const std::vector<int> tp = groups(mesh.tp()), cp = groups(mesh.cp()), pp = groups(mesh.pp()),
                           dp = groups(mesh.dp()), dp_cp = groups(mesh.dp_cp()), ep = groups(mesh.ep()),
                           expert_dp = groups(mesh.expert_dp());
    if (world.rank() != 23) return;  // rank 23 = tp 1, cp 2, pp 1, dp 1
    EXPECT_EQ(tp, (std::vector{22, 23}));
    EXPECT_EQ(cp, (std::vector{19, 21, 23}));
    EXPECT_EQ(pp, (std::vector{17, 23}));
    EXPECT_EQ(dp, (std::vector{11, 23}));
    EXPECT_EQ(dp_cp, (std::vector{7, 9, 11, 19, 21, 23}));
    EXPECT_EQ(ep, (std::vector{19, 21, 23}));
    EXPECT_EQ(expert_dp, (std::vector{11, 23}));
    EXPECT_EQ(mesh.tp().name(), "tp");
    EXPECT_EQ(mesh.expert_dp().name(), "expert_dp");
  });
}

// Expert index = (cp + cp_size * dp) mod ep, also where an expert group reaches across both axes.
TEST(ProcessMesh, NumbersExpertRanksAcrossContextAndData) {
  run_ranks(12, [](Communicator& world) {
    ProcessMesh mesh(world, {1, 3, 1, 4, 4});
    const int index = mesh.cp().rank() + 3 * mesh.dp().rank();
    EXPECT_EQ(mesh.ep().rank(), index % 4);
    EXPECT_EQ(mesh.ep().size(), 4);
    EXPECT_EQ(mesh.expert_dp().rank(), index / 4);
    EXPECT_EQ(mesh.expert_dp().size(), 3);
    EXPECT_EQ(mesh.dp_cp().rank(), index);
  });
}

TEST(ProcessMesh, FollowsTheOrderOfItsAxes) {
  run_ranks(8, [](Communicator& world) {
    ProcessMesh mesh(world, {2, 1, 2, 2, 1}, "dp,pp,cp,tp");
    EXPECT_EQ(mesh.dp().rank(), world.rank() % 2);
    EXPECT_EQ(mesh.pp().rank(), world.rank() / 2 % 2);
    EXPECT_EQ(mesh.tp().rank(), world.rank() / 4);
  });
}

std::string refusal(const MeshSizes& sizes, int world, const std::string& order = "tp,cp,pp,dp") {
  try {
    ProcessMesh::validate(sizes, world, order);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(ProcessMesh, RefusesWithAllNumbersAndAValueThatWorks) {
  EXPECT_EQ(refusal({2, 1, 2, 1, 1}, 4), "");
  EXPECT_EQ(
      refusal({2, 1, 2, 1, 1}, 6),
      "tp 2, cp 1, pp 2, dp 1 make 4 ranks, but 6 are running; run 4 ranks (dp 1), or use tp 1 with dp 3");
  EXPECT_EQ(refusal({2, 1, 2, 1, 1}, 8),
            "tp 2, cp 1, pp 2, dp 1 make 4 ranks, but 8 are running; dp 2 would fit");
  EXPECT_EQ(refusal({2, 1, 2, 4, 1}, 9),
            "tp 2, cp 1, pp 2, dp 4 make 16 ranks, but 9 are running; run 8 ranks (dp 2) or 16 ranks (dp 4)");
  EXPECT_EQ(
      refusal({2, 1, 1, 1, 1}, 1),
      "tp 2, cp 1, pp 1, dp 1 make 2 ranks, but 1 is running; run 2 ranks (dp 1), or use tp 1 with dp 1");
  EXPECT_EQ(refusal({0, 1, 1, 1, 1}, 4),
            "tp is 0, but every degree must be at least 1 (tp 0, cp 1, pp 1, dp 1, ep 1; 4 ranks); use tp 1");
  EXPECT_NE(refusal({1, 1, 1, -1, 1}, 4).find("dp is -1"), std::string::npos);
  EXPECT_EQ(refusal({1, 2, 1, 3, 4}, 6),
            "ep 4 must divide cp * dp = 6 (tp 1, cp 2, pp 1, dp 3; 6 ranks); ep 2 would fit");
  EXPECT_NE(refusal({65536, 65536, 1, 1, 1}, 1), "");
  for (const char* order :
       {"", "tp", "tp,cp,pp", "tp,cp,pp,pp", "tp,cp,pp,dp,dp", "tp,cp,pp,xx", "tp,cp,pp,dp,"}) {
    EXPECT_NE(refusal({}, 1, order).find("mesh order"), std::string::npos) << order;
  }
}

}  // namespace
}  // namespace escalera

// Which cases of many to run: few, in which every two choices meet.
// defines: pairwise()
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <vector>

namespace escalera {

/// Few of `all`, such that any two choices that occur together in one of them do so in one of these. `choices_of(case)` lists what
/// was chosen, a number for each setting, the same settings in the same order for each case. Greedy: the case that adds most,
/// again and again.
template <class Case, class ChoicesOf>
std::vector<Case> pairwise(const std::vector<Case>& all, ChoicesOf choices_of) {
  using Pair = std::array<long, 4>;  // two settings, and what was chosen for each
  std::vector<std::set<Pair>> pairs;
  std::set<Pair> missing;
  for (const Case& one : all) {
    const std::vector<long> choices = choices_of(one);
    std::set<Pair>& mine = pairs.emplace_back();
    for (std::size_t a = 0; a < choices.size(); a++) {
      for (std::size_t b = a + 1; b < choices.size(); b++) {
        mine.insert({static_cast<long>(a), choices[a], static_cast<long>(b), choices[b]});
      }
    }
    missing.insert(mine.begin(), mine.end());
  }
  std::vector<Case> chosen;
  while (!missing.empty()) {
    std::vector<std::ptrdiff_t> gains;
    for (const std::set<Pair>& mine : pairs) {
      gains.push_back(std::count_if(mine.begin(), mine.end(), [&](const Pair& pair) { return missing.contains(pair); }));
    }
    const auto best = static_cast<std::size_t>(std::max_element(gains.begin(), gains.end()) - gains.begin());
    for (const Pair& pair : pairs[best]) missing.erase(pair);
    chosen.push_back(all[best]);
  }
  return chosen;
}

}  // namespace escalera

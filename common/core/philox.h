// Counter-based random numbers: a value is a pure function of (key, counter), so that any rank can draw any
// element of any sequence without drawing those before it.
// defines: philox(), uniform(), normal(), hash_name()
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace escalera {

/// One block of Philox4x32-10: 128 pseudo-random bits for a 64-bit key and a 128-bit counter. Different
/// counters under the same key never give the same block. Source: Salmon, Moraes, Dror, Shaw, "Parallel
/// random numbers: as easy as 1, 2, 3", SC 2011; the words are numbered as in their library Random123: the
/// low word of `counter_lo` is word 0.
std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_hi, std::uint64_t counter_lo);

/// A number of [0, 1) in steps of 2^-53, from the first half of the block.
double uniform(std::uint64_t key, std::uint64_t counter_hi, std::uint64_t counter_lo);

/// A number of the standard normal distribution, by Box and Muller's transformation in float64. One block
/// gives one number, so that element `counter_lo` of a matrix needs no other element. It lies within +-8.6
/// and is always finite.
double normal(std::uint64_t key, std::uint64_t counter_hi, std::uint64_t counter_lo);

/// The 64-bit FNV-1a hash of a name: the same on every machine and in every build, which std::hash does not
/// promise. Makes a counter out of a parameter's name: `normal(seed, hash_name(name), global_index)`.
std::uint64_t hash_name(std::string_view name);

}  // namespace escalera

// A shuffled order without a table: where does index i go?
// defines: permute()
#pragma once

#include <cstdint>

#include "common/core/dtype.h"

namespace escalera {

/// Image of `index` under a pseudo-random permutation of [0, count): for a fixed (key, stream, count) every
/// number of [0, count) is the image of exactly one index. Takes no memory and about a microsecond, whatever
/// `count` is, so that each rank can ask for its own samples alone.
///
/// The permutation is a Feistel network of eight rounds with Philox as its round function, over the smallest
/// power of four that is at least `count`; images that fall outside of [0, count) are sent through it again
/// until one falls inside ("cycle walking": Black and Rogaway, "Ciphers with arbitrary finite domains",
/// CT-RSA 2002). Throws Error unless 0 <= index < count.
Index permute(Index index, Index count, std::uint64_t key, std::uint64_t stream);

}  // namespace escalera

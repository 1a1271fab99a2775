// Errors: what went wrong, and which exit code it means.
// defines: Error, UsageError, PeerError, fail(), require()
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace escalera {

/// A failure while running; `main` turns it into exit code 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A request that cannot be carried out as it was typed (option, configuration, input file); exit code 2.
/// It is thrown before anything is allocated, on every rank alike, and printed once.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// Thrown on a rank that waits for another rank which has failed. It carries no news of its own, so `main`
/// does not print it when the failing rank has already spoken.
class PeerError : public Error {
 public:
  using Error::Error;
};

/// Throws `E` with a formatted message.
template <class E = Error, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw E(fmt::format(text, std::forward<Args>(args)...));
}

/// Throws `E` with a formatted message unless `condition` holds.
template <class E = Error, class... Args>
void require(bool condition, fmt::format_string<Args...> text, Args&&... args) {
  if (!condition) throw E(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace escalera

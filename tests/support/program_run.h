// The chapters' programs run as a user runs them, on small models and text made here, and what such a run leaves behind.
// defines: Words, on_threads(), on_mpi(), small_model(), repetitive_text(), lines_of(), metrics_of(), losses_of(), ...
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_directory.h"

namespace escalera {

/// The words of a command line.
using Words = std::vector<std::string>;
/// `first` followed by `second`. Of an option that is given twice, the last counts.
Words operator+(Words first, const Words& second);

/// build/<preset>/bin/`program` on `ranks` threads of one process.
Words on_threads(int ranks, const std::string& program = "step01_dp");
/// scripts/launch -n ranks with the same program.
Words on_mpi(int ranks, const std::string& program = "step01_dp");
/// Whether this build has MPI; a test that needs it is skipped otherwise.
bool has_mpi();

/// Runs `command` and expects that it ends well.
ProcessResult run_well(const Words& command, const ProcessOptions& options = {});

/// A model that computes in milliseconds and in which hardly a size divides another; sequences of 24 bytes of `data`.
Words small_model(const std::string& data);
/// A text of `bytes` bytes in which the next word is never hard to guess, but no line is like the one before it.
std::string repetitive_text(std::size_t bytes);
/// The little-endian bytes of `tokens`, `width` bits each, as a raw token file holds them.
std::string raw_tokens(const std::vector<std::uint32_t>& tokens, int width);

/// `text` at its line ends; the end of the last line makes no empty one.
std::vector<std::string> lines_of(const std::string& text);
/// How often `part` is in `text`.
int occurrences(const std::string& text, const std::string& part);

/// The objects of a --metrics file, one per line.
std::vector<nlohmann::json> metrics_of(const std::string& file);
/// The loss of each step in a --metrics file, with all digits.
std::vector<double> losses_of(const std::string& metrics_file);

/// ||got - reference|| / ||reference|| of each tensor in two safetensors files; fails the test unless both have the same
/// names and shapes.
std::map<std::string, double> tensor_errors(const std::string& got, const std::string& reference);

}  // namespace escalera

// Models as folders that Hugging Face's transformers reads and writes: config.json beside model.safetensors.
// defines: load_weights(), save_folder(), save_gradients()
#pragma once

#include <string>

#include "common/comm/communicator.h"
#include "common/model/model.h"

namespace escalera {

/// Sets the weights of an allocated model from folder `dir`: from model.safetensors, or from the files that
/// model.safetensors.index.json names. Each rank reads what its parameter records say that it holds, from whole files and
/// without talking to others; padding stays zero. F64, F32 and BF16 are converted to the master weights, and those rounded
/// to the model's type.
///
/// Throws UsageError, opening with `option` and the folder, before any weight is changed: a missing folder or file; a
/// config.json that describes another model; a tensor that is missing, that the model has no place for, or that has another
/// shape or an element type that cannot be read. A tied lm_head.weight may be absent and is not read.
void load_weights(Model& model, const std::string& dir, const std::string& option = "--init-from");

/// Writes config.json and model.safetensors, with the weights in the model's type under Hugging Face's names. Makes the
/// folder where there is none. Each file is replaced only when its successor is complete, the weights first. Collective
/// over `world`, whose ranks hold the model between them in any layout (WholeTensors); rank 0 gets one parameter at a time and
/// writes. Throws on all ranks if rank 0 cannot write: an Error that names the path there, a PeerError with the same words
/// elsewhere.
void save_folder(Communicator& world, Model& model, const std::string& dir);

/// Writes every gradient as it stands, in the type it is accumulated in, under its parameter's name. Collective, and throws,
/// as save_folder().
void save_gradients(Communicator& world, Model& model, const std::string& file);

}  // namespace escalera

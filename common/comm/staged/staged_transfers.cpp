#include "common/comm/staged/staged_transfers.h"

namespace escalera::cuda {

StagedTransfers::~StagedTransfers() {
  // The blocks of the pool may still be read by copies to the device.
  cudaStreamSynchronize(stream_.get());
  cudaStreamSynchronize(device_.stream());
}

std::shared_ptr<StagedTransfers::Exchange> StagedTransfers::prepare(const Call& call, Trace* trace) {
  constexpr Index alignment = 256;  // each message starts where copies are fast
  auto exchange = std::make_shared<Exchange>();
  exchange->on_device = exchange->on_host = call.transfers;
  Index bytes = 0;
  for (const PointToPoint& transfer : call.transfers)
    bytes += (transfer.buffer.bytes() + alignment - 1) / alignment * alignment;
  exchange->block = pool_.take(bytes);
  std::byte* place = exchange->block->data();
  for (PointToPoint& transfer : exchange->on_host) {
    transfer.buffer.data = place;
    place += (transfer.buffer.bytes() + alignment - 1) / alignment * alignment;
  }
  exchange->ready.record(device_.stream());
  if (trace && trace->enabled()) {
    exchange->trace = trace;
    exchange->span = {std::string(call.name()), host_->name(), 0, 0, 0};
    for (const PointToPoint& transfer : call.transfers) exchange->span.bytes += transfer.buffer.bytes();
  }
  return exchange;
}

void StagedTransfers::post(Exchange& exchange) {
  device_.use();
  bool sends = false;
  for (std::size_t i = 0; i < exchange.on_device.size(); ++i) {
    const PointToPoint& from = exchange.on_device[i];
    if (!from.is_send || from.buffer.count == 0) continue;
    if (!std::exchange(sends, true)) exchange.ready.order(stream_.get());
    CUDA_CHECK(cudaMemcpyAsync(exchange.on_host[i].buffer.data, from.buffer.data,
                               static_cast<std::size_t>(from.buffer.bytes()), cudaMemcpyDeviceToHost, stream_.get()));
  }
  if (sends) CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
  exchange.span.begin = Trace::now();
  exchange.work = host_->exchange_async(exchange.on_host);
}

void StagedTransfers::complete(Exchange& exchange) {
  exchange.work.wait();
  if (exchange.trace) {
    exchange.span.end = Trace::now();
    exchange.trace->add(exchange.span);
  }
  // The compute stream itself copies: it would have to wait for the copies anyway, and has done by now whatever was reading
  // the receiving buffers at the time of the call.
  for (std::size_t i = 0; i < exchange.on_device.size(); ++i) {
    const PointToPoint& to = exchange.on_device[i];
    if (to.is_send || to.buffer.count == 0) continue;
    CUDA_CHECK(cudaMemcpyAsync(to.buffer.data, exchange.on_host[i].buffer.data, static_cast<std::size_t>(to.buffer.bytes()),
                               cudaMemcpyHostToDevice, device_.stream()));
  }
  exchange.block->used_by(device_.stream());
  pool_.put_back(std::move(exchange.block));
}

}  // namespace escalera::cuda

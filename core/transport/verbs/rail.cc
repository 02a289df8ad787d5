#include "core/transport/verbs/rail.h"

#include <algorithm>
#include <cerrno>
#include <random>

#include "core/base/status.h"

namespace shoal::transport {
namespace {

uint32_t RandomPacketSequence() {
  std::random_device device;
  return device() & 0xFFFFFF;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionRail>> ConnectionRail::Create(const Options& options) {
  std::unique_ptr<ConnectionRail> rail(new ConnectionRail(options));
  SHOAL_ASSIGN_OR_RETURN(rail->pair_,
                         QueuePair::Create(options.device, options.channel, options.depths,
                                           options.verbs.inline_bytes, options.quarantine));
  SHOAL_RETURN_IF_ERROR(rail->pair_->Initialize(options.local.rail.port, options.peers_write));
  rail->sends_ = std::make_unique<SendQueue>(rail->pair_.get(), options.depths.sends,
                                             options.verbs.signal_interval);
  rail->messages_.resize(ReceiveQueue::kGreetingBytes + 2 * ReceiveQueue::kMessageBytes);
  rail->messages_mr_ = options.device->api().RegMr(options.device->pd(), rail->messages_.data(),
                                                   rail->messages_.size(), IBV_ACCESS_LOCAL_WRITE);
  if (rail->messages_mr_ == nullptr) {
    return VerbsError(errno, fmt::format("registering buffers with {}", options.device->name()));
  }
  rail->self_ = {
      .number = rail->pair_->number(),
      .packet_sequence = RandomPacketSequence(),
      .lid = options.local.rail.port.lid,
      .gid = {},
      .mtu_bytes = options.local.rail.port.mtu_bytes,
      .reads_as_target = std::clamp(options.device->description().max_reads_as_target, 1, 255)};
  return rail;
}

ConnectionRail::~ConnectionRail() {
  // The peer's access ends with the queue pair, before anything that it could have reached is
  // freed.
  sends_.reset();
  if (pair_ != nullptr) {
    VerbsApi& api = pair_->api();
    std::unique_ptr<ReceiveQueue> receives = std::move(receives_);
    pair_->Stop();
    for (ibv_mw* window : windows_) {
      api.DeallocMw(window);
    }
    pair_->End();
    receives.reset();
    if (messages_mr_ != nullptr) {
      api.DeregMr(messages_mr_);
    }
  }
}

absl::Status ConnectionRail::Connect(const GidDescription& gid, const QueuePairEnd& peer,
                                     bool rings) {
  SHOAL_ASSIGN_OR_RETURN(
      receives_,
      ReceiveQueue::Create(pair_.get(), rings ? options_.depths.receives : ReceiveQueue::kSpare));
  SHOAL_RETURN_IF_ERROR(receives_->PostAll());
  self_.gid = gid.gid;
  return pair_->Connect(options_.local.rail.port, gid.index, self_, peer, options_.verbs);
}

absl::StatusOr<RemoteMemory> ConnectionRail::Expose(
    std::span<const std::shared_ptr<Region>> regions) {
  RemoteMemory told;
  for (const std::shared_ptr<Region>& region : regions) {
    const auto& own = static_cast<const VerbsRegion&>(*region);
    const Registration& registration = own.registration();
    const bool writable = own.access() == Access::kRemoteWrite;
    told.regions.push_back({static_cast<int64_t>(registration.memory().size()), writable});
    RemoteMemory::Chunks& chunks = told.chunks.emplace_back();
    chunks.bytes = static_cast<int64_t>(registration.chunk_bytes());
    for (size_t chunk = 0; chunk < registration.chunks(); ++chunk) {
      ibv_mr* mr = registration.mr(options_.local.device, chunk);
      const std::span<std::byte> memory = registration.Chunk(chunk);
      uint32_t key = mr->rkey;
      if (writable && options_.device->description().windows) {
        ibv_mw* window = pair_->api().AllocMw(options_.device->pd(), IBV_MW_TYPE_2);
        if (window == nullptr) {
          return VerbsError(errno, fmt::format("a memory window on {}", options_.device->name()));
        }
        windows_.push_back(window);
        key = ibv_inc_rkey(window->rkey);
        sends_->Add({.kind = Work::Kind::kBind,
                     .local = memory.data(),
                     .window = window,
                     .region = mr,
                     .window_bytes = memory.size()});
      }
      chunks.chunks.push_back({reinterpret_cast<uint64_t>(memory.data()), key});
    }
  }
  return told;
}

std::byte* ConnectionRail::Address(Slot slot) {
  switch (slot) {
    case Slot::kGreeting:
      return messages_.data();
    case Slot::kCredit:
      return messages_.data() + ReceiveQueue::kGreetingBytes;
    case Slot::kGoodbye:
      return messages_.data() + ReceiveQueue::kGreetingBytes + ReceiveQueue::kMessageBytes;
  }
  return nullptr;
}

absl::Status ConnectionRail::Send(Slot slot, const std::string& message) {
  bool& taken = slot_taken_[static_cast<size_t>(slot)];
  const size_t room =
      slot == Slot::kGreeting ? ReceiveQueue::kGreetingBytes : ReceiveQueue::kMessageBytes;
  if (taken) {
    return FailedPrecondition("a message of this kind is under way");
  }
  if (message.size() > room) {
    return ResourceExhausted(
        "a message of {} bytes for {}: too many regions, or too many pieces of them",
        message.size(), room);
  }
  taken = true;
  std::ranges::copy(std::as_bytes(std::span(message)), Address(slot));
  sends_->Add({.kind = Work::Kind::kMessage,
               .length = static_cast<uint32_t>(message.size()),
               .local = Address(slot),
               .local_key = messages_mr_->lkey});
  return absl::OkStatus();
}

void ConnectionRail::SlotIsFree(const Work& work) {
  for (const Slot slot : {Slot::kGreeting, Slot::kCredit, Slot::kGoodbye}) {
    if (work.local == Address(slot)) {
      slot_taken_[static_cast<size_t>(slot)] = false;
    }
  }
}

absl::Status ConnectionRail::Arm() {
  if (armed_) {
    return absl::OkStatus();
  }
  const int error = pair_->api().ReqNotifyCq(pair_->cq());
  if (error != 0) {
    return ErrnoToStatus(error, fmt::format("{}: asking for events", options_.device->name()));
  }
  armed_ = true;
  return absl::OkStatus();
}

}  // namespace shoal::transport

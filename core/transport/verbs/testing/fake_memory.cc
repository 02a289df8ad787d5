// Keys: what a queue pair may touch.
#include <algorithm>
#include <cstring>

#include "core/transport/verbs/testing/fake_engine.h"

namespace shoal::transport {
namespace {

// A key is an index, which is never reused, and eight bits that windows change.
constexpr uint32_t IndexOf(uint32_t key) { return key >> 8; }

bool Within(uint64_t address, uint64_t bytes, uint64_t begin, uint64_t length) {
  return address >= begin && address - begin <= length && bytes <= length - (address - begin);
}

bool Within(uint64_t address, uint64_t bytes, const ibv_mr& region) {
  return Within(address, bytes, reinterpret_cast<uint64_t>(region.addr), region.length);
}

}  // namespace

void FakeEngine::AddRegion(FakeMr* region) {
  const uint32_t index = next_key_++;
  region->handle = index;
  // Different from each other, so that neither passes for the other.
  region->rkey = (index << 8) | static_cast<uint32_t>(random_.Below(256));
  region->lkey = region->rkey ^ 0x5A;
  regions_[index] = region;
}

void FakeEngine::AddWindow(FakeMw* window) {
  const uint32_t index = next_key_++;
  window->handle = index;
  window->rkey = (index << 8) | static_cast<uint32_t>(random_.Below(256));
  window->key = window->rkey;
  windows_[index] = window;
}

void FakeEngine::RemoveRegion(FakeMr* region) { regions_.erase(region->handle); }

void FakeEngine::RemoveWindow(FakeMw* window) {
  Unbind(*window);
  windows_.erase(window->handle);
}

void FakeEngine::Unbind(FakeMw& window) {
  if (window.region != nullptr) {
    --window.region->windows;
  }
  window.region = nullptr;
  window.owner = nullptr;
}

std::byte* FakeEngine::LocalBytes(const FakeQp& qp, uint32_t key, uint64_t address, uint64_t bytes,
                                  int access) {
  const auto it = regions_.find(IndexOf(key));
  if (it == regions_.end() || it->second->lkey != key || it->second->pd != qp.pd ||
      (it->second->access & access) != access || !Within(address, bytes, *it->second)) {
    return nullptr;
  }
  return reinterpret_cast<std::byte*>(address);
}

std::byte* FakeEngine::RemoteBytes(const FakeQp& target, uint32_t key, uint64_t address,
                                   uint64_t bytes, int access) {
  const auto* const memory = reinterpret_cast<std::byte*>(address);
  if (const auto it = regions_.find(IndexOf(key)); it != regions_.end()) {
    const FakeMr& region = *it->second;
    const bool allowed = region.rkey == key && region.pd == target.pd &&
                         (region.access & access) == access && Within(address, bytes, region);
    return allowed ? const_cast<std::byte*>(memory) : nullptr;
  }
  const auto it = windows_.find(IndexOf(key));
  if (it == windows_.end()) {
    return nullptr;
  }
  const FakeMw& window = *it->second;
  const bool allowed =
      window.key == key && window.region != nullptr && window.owner == &target &&
      (window.access & static_cast<unsigned int>(access)) == static_cast<unsigned int>(access) &&
      Within(address, bytes, window.begin, window.bytes);
  return allowed ? const_cast<std::byte*>(memory) : nullptr;
}

bool FakeEngine::MayAccessPieces(const FakeQp& qp, const FakeSend& send) {
  if ((send.request.send_flags & IBV_SEND_INLINE) != 0) {
    return true;
  }
  const int access = send.request.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;
  return std::ranges::all_of(send.pieces, [&](const ibv_sge& piece) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return piece.length == 0 ||
           LocalBytes(qp, piece.lkey, piece.addr, piece.length, access) != nullptr;
  });
}

bool FakeEngine::Gather(const FakeQp& qp, const FakeSend& send, uint64_t offset,
                        std::span<std::byte> into) {
  if ((send.request.send_flags & IBV_SEND_INLINE) != 0) {
    std::memcpy(into.data(), send.inlined.data() + offset, into.size());
    return true;
  }
  for (const ibv_sge& piece : send.pieces) {
    if (into.empty()) {
      break;
    }
    if (offset >= piece.length) {
      offset -= piece.length;
      continue;
    }
    const std::byte* from = LocalBytes(qp, piece.lkey, piece.addr, piece.length, 0);
    if (from == nullptr) {
      return false;
    }
    const size_t size = std::min<size_t>(into.size(), piece.length - offset);
    std::memmove(into.data(), from + offset, size);
    into = into.subspan(size);
    offset = 0;
  }
  return into.empty();
}

bool FakeEngine::Scatter(const FakeQp& qp, std::span<const ibv_sge> pieces, uint64_t offset,
                         std::span<const std::byte> from) {
  for (const ibv_sge& piece : pieces) {
    if (from.empty()) {
      break;
    }
    if (offset >= piece.length) {
      offset -= piece.length;
      continue;
    }
    std::byte* into = LocalBytes(qp, piece.lkey, piece.addr, piece.length, IBV_ACCESS_LOCAL_WRITE);
    if (into == nullptr) {
      return false;
    }
    const size_t size = std::min<size_t>(from.size(), piece.length - offset);
    std::memmove(into + offset, from.data(), size);
    from = from.subspan(size);
    offset = 0;
  }
  return from.empty();
}

void FakeEngine::Bind(FakeQp& qp, FakeSend& send) {
  const auto& request = send.request.bind_mw;
  const ibv_mw_bind_info& info = request.bind_info;
  const auto window =
      std::ranges::find_if(windows_, [&](const auto& entry) { return entry.second == request.mw; });
  const auto region =
      std::ranges::find_if(regions_, [&](const auto& entry) { return entry.second == info.mr; });
  const bool known = window != windows_.end() && region != regions_.end();
  if (!known || window->second->region != nullptr || window->second->pd != qp.pd ||
      region->second->pd != qp.pd || IndexOf(request.rkey) != window->first ||
      request.rkey == window->second->key || (region->second->access & IBV_ACCESS_MW_BIND) == 0 ||
      ((info.mw_access_flags & IBV_ACCESS_REMOTE_WRITE) != 0 &&
       (region->second->access & IBV_ACCESS_LOCAL_WRITE) == 0) ||
      !Within(info.addr, info.length, *region->second)) {
    Fail(qp, send, IBV_WC_MW_BIND_ERR);
    return;
  }
  FakeMw& bound = *window->second;
  bound.region = region->second;
  ++bound.region->windows;
  bound.owner = &qp;
  bound.key = request.rkey;
  bound.begin = info.addr;
  bound.bytes = info.length;
  bound.access = info.mw_access_flags;
  Done(send);
}

void FakeEngine::Invalidate(FakeQp& qp, FakeSend& send) {
  const auto it = windows_.find(IndexOf(send.request.invalidate_rkey));
  if (it == windows_.end() || it->second->key != send.request.invalidate_rkey ||
      it->second->owner != &qp) {
    Fail(qp, send, IBV_WC_LOC_QP_OP_ERR);
    return;
  }
  Unbind(*it->second);
  Done(send);
}

}  // namespace shoal::transport

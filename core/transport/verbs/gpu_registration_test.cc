// The choice between dma-buf, peer memory and neither, with the test's own GPU, driver and devices.
#include "core/transport/verbs/gpu_registration.h"

#include <fcntl.h>

#include <cerrno>
#include <map>
#include <memory>
#include <set>

#include "core/base/bytes.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uintptr_t kBegin = 0x7f0000000000;
constexpr int64_t kBytes = 64 * kMiB;
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

void* At(int64_t offset) { return reinterpret_cast<void*>(kBegin + static_cast<uint64_t>(offset)); }

// One GPU with one allocation.
class FakeGpu final : public GpuMemory {
 public:
  FakeGpu() {
    device.name = "GPU 0";
    device.remote_writes = RemoteWrites::kVisible;
  }
  int gpus() const override { return 1; }
  const GpuDevice& gpu(int) const override { return device; }
  absl::StatusOr<std::optional<GpuAllocation>> Find(const void* address) override {
    const auto at = reinterpret_cast<uintptr_t>(address);
    if (at < kBegin || at >= kBegin + kBytes) {
      return std::nullopt;
    }
    return GpuAllocation{.gpu = 0, .begin = kBegin, .bytes = kBytes};
  }
  absl::Status Prepare(const void*) override { return prepare; }
  absl::StatusOr<UniqueFd> ExportDmaBuf(const void* address, int64_t bytes,
                                        DmaBufMapping mapping) override {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % 4096, 0u);
    EXPECT_EQ(bytes % 4096, 0);
    const absl::Status& status = mapping == DmaBufMapping::kPcie ? pcie : plain;
    ++exports;
    if (!status.ok()) {
      return status;
    }
    UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    fds[fd.get()] = {mapping, reinterpret_cast<uintptr_t>(address), bytes};
    return fd;
  }
  absl::StatusOr<GpuShare> Share(std::span<const std::byte>) override {
    return Unimplemented("not shared");
  }
  absl::StatusOr<OpenedShare> Open(const GpuShare&) override { return Unimplemented("not shared"); }
  void Close(const OpenedShare&) override {}
  absl::Status FlushRemoteWrites(int) override {
    ++flushes;
    return absl::OkStatus();
  }
  absl::Status Copy(std::span<const GpuCopy>) override {
    return Unimplemented("devices read and write this memory themselves");
  }
  bool PinsReadOnly() const override { return false; }
  absl::Status Pin(std::span<const std::byte>, bool) override { return Unimplemented("no need"); }
  void Unpin(std::span<const std::byte>) override {}

  struct Export {
    DmaBufMapping mapping;
    uintptr_t begin;
    int64_t bytes;
  };
  GpuDevice device;
  absl::Status prepare;
  absl::Status pcie;
  absl::Status plain;
  int exports = 0;
  int flushes = 0;
  std::map<int, Export> fds;
};

// Devices that register, or refuse with an errno. Everything else of verbs is not called.
class FakeVerbs final : public VerbsApi {
 public:
  explicit FakeVerbs(FakeGpu* gpu) : gpu_(gpu) {}

  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    return Make(pd, peer_error, reinterpret_cast<uintptr_t>(address), bytes, access);
  }
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                      int access) override {
    if (fd < 0) {
      errno = invalid_file_error;
      return nullptr;
    }
    EXPECT_GE(::fcntl(fd, F_GETFD), 0) << "closed before it was registered";
    const FakeGpu::Export& from = gpu_->fds.at(fd);
    EXPECT_EQ(from.begin + offset, iova);
    EXPECT_LE(offset + bytes, static_cast<uint64_t>(from.bytes));
    files.insert(fd);
    return Make(pd, from.mapping == DmaBufMapping::kPcie ? pcie_error : plain_error, iova, bytes,
                access);
  }
  int DeregMr(ibv_mr* mr) override {
    EXPECT_EQ(
        live.erase(reinterpret_cast<uintptr_t>(mr->addr) ^ reinterpret_cast<uintptr_t>(mr->pd)),
        1u);
    delete mr;
    return 0;
  }

  std::vector<std::string> DeviceNames() override { return {}; }
  DeviceLocation Locate(const std::string&) override { return {}; }
  ibv_context* OpenDevice(const std::string&) override { return nullptr; }
  int CloseDevice(ibv_context*) override { return ENOSYS; }
  int QueryDevice(ibv_context*, ibv_device_attr*) override { return ENOSYS; }
  int QueryPort(ibv_context*, uint8_t, ibv_port_attr*) override { return ENOSYS; }
  std::vector<ibv_gid_entry> QueryGids(ibv_context*) override { return {}; }
  int GetAsyncEvent(ibv_context*, ibv_async_event*) override { return ENOSYS; }
  void AckAsyncEvent(ibv_async_event*) override {}
  ibv_pd* AllocPd(ibv_context*) override { return nullptr; }
  int DeallocPd(ibv_pd*) override { return ENOSYS; }
  ibv_mw* AllocMw(ibv_pd*, ibv_mw_type) override { return nullptr; }
  int DeallocMw(ibv_mw*) override { return ENOSYS; }
  ibv_comp_channel* CreateCompChannel(ibv_context*) override { return nullptr; }
  int DestroyCompChannel(ibv_comp_channel*) override { return ENOSYS; }
  ibv_cq* CreateCq(ibv_context*, int, void*, ibv_comp_channel*) override { return nullptr; }
  int DestroyCq(ibv_cq*) override { return ENOSYS; }
  int ReqNotifyCq(ibv_cq*) override { return ENOSYS; }
  int GetCqEvent(ibv_comp_channel*, ibv_cq**) override { return ENOSYS; }
  void AckCqEvents(ibv_cq*, unsigned int) override {}
  int PollCq(ibv_cq*, int, ibv_wc*) override { return -1; }
  ibv_qp* CreateQp(ibv_pd*, ibv_qp_init_attr*) override { return nullptr; }
  int ModifyQp(ibv_qp*, ibv_qp_attr*, int) override { return ENOSYS; }
  int DestroyQp(ibv_qp*) override { return ENOSYS; }
  int PostSend(ibv_qp*, ibv_send_wr*, ibv_send_wr**) override { return ENOSYS; }
  int PostRecv(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) override { return ENOSYS; }

  int pcie_error = 0;
  int plain_error = 0;
  int peer_error = 0;
  int fail_after = -1;  // registrations that still succeed; -1: all
  int invalid_file_error = EBADF;
  int tries = 0;
  std::set<uintptr_t> live;
  std::set<int> files;
  ibv_pd* failing = nullptr;  // errors come only from this one; null: from all

 private:
  ibv_mr* Make(ibv_pd* pd, int error, uintptr_t address, size_t bytes, int access) {
    ++tries;
    EXPECT_EQ(access, kAccess);
    if (error == 0 && fail_after == 0) {
      error = ENOMEM;
    }
    if (error != 0 && (failing == nullptr || failing == pd)) {
      errno = error;
      return nullptr;
    }
    fail_after -= fail_after > 0 ? 1 : 0;
    auto* mr = new ibv_mr{};
    mr->pd = pd;
    mr->addr = reinterpret_cast<void*>(address);
    mr->length = bytes;
    live.insert(address ^ reinterpret_cast<uintptr_t>(pd));
    return mr;
  }
  FakeGpu* const gpu_;
};

class GpuRegistrationTest : public testing::Test {
 protected:
  GpuRegistrar Registrar(int64_t max_region_bytes = 0) {
    return GpuRegistrar(&verbs_, &gpu_,
                        {{.name = "mlx5_0", .pd = &pds_[0], .max_region_bytes = max_region_bytes},
                         {.name = "mlx5_1", .pd = &pds_[1], .max_region_bytes = max_region_bytes}});
  }
  void TearDown() override { EXPECT_THAT(verbs_.live, SizeIs(0)) << "left registered"; }

  static int64_t Count(const GpuRegistrar& registrar, GpuRoute route) {
    return registrar.statistics().by(route);
  }

  ibv_pd pds_[2] = {};
  FakeGpu gpu_;
  FakeVerbs verbs_{&gpu_};
};

TEST_F(GpuRegistrationTest, DmaBufOverPcieComesFirstWithOneFileForAllDevices) {
  GpuRegistrar registrar = Registrar();
  auto registration = *registrar.Register(At(100), 5000, kAccess);
  EXPECT_TRUE(registration.reachable());
  EXPECT_THAT(registration.pieces, ElementsAre(SizeIs(1), SizeIs(1)));
  EXPECT_EQ(registration.pieces[0][0].mr->addr, At(100));
  EXPECT_EQ(registration.pieces[0][0].bytes, 5000);
  EXPECT_EQ(gpu_.exports, 1);
  ASSERT_THAT(verbs_.files, SizeIs(1));
  EXPECT_LT(::fcntl(*verbs_.files.begin(), F_GETFD), 0) << "the file stays open";
  EXPECT_EQ(Count(registrar, GpuRoute::kDmaBufPcie), 2);
  const auto findings = registrar.findings();
  ASSERT_THAT(findings, SizeIs(2));
  EXPECT_EQ(findings[0].route, GpuRoute::kDmaBufPcie);
  EXPECT_EQ(findings[0].reason, "");
  registrar.Deregister(registration);
  registrar.Deregister(registration);  // nothing is left to do
}

TEST_F(GpuRegistrationTest, AGpuWithoutThePcieMappingExportsTheDefaultOne) {
  gpu_.pcie = Unimplemented("cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED");
  GpuRegistrar registrar = Registrar();
  auto first = *registrar.Register(At(0), kMiB, kAccess);
  EXPECT_EQ(gpu_.exports, 2);
  auto second = *registrar.Register(At(kMiB), kMiB, kAccess);
  EXPECT_EQ(gpu_.exports, 3) << "it is known by now";
  EXPECT_EQ(Count(registrar, GpuRoute::kDmaBuf), 4);
  EXPECT_THAT(registrar.findings()[1].reason, HasSubstr("CUDA_ERROR_NOT_SUPPORTED"));
  registrar.Deregister(first);
  registrar.Deregister(second);
}

TEST_F(GpuRegistrationTest, WhereNoDmaBufIsKnownPeerMemoryIsTaken) {
  verbs_.pcie_error = EOPNOTSUPP;
  verbs_.plain_error = EOPNOTSUPP;
  GpuRegistrar registrar = Registrar();
  auto registration = *registrar.Register(At(0), kMiB, kAccess);
  EXPECT_EQ(Count(registrar, GpuRoute::kPeerMemory), 2);
  EXPECT_THAT(registrar.findings()[0].reason,
              AllOf(HasSubstr("dma-buf over PCIe: "), HasSubstr("know no dma-buf")));
  registrar.Deregister(registration);
}

TEST_F(GpuRegistrationTest, WhereNothingWorksNothingIsRegisteredOrTriedAgain) {
  verbs_.pcie_error = verbs_.plain_error = EOPNOTSUPP;
  verbs_.peer_error = EFAULT;
  GpuRegistrar registrar = Registrar();
  auto registration = *registrar.Register(At(0), kMiB, kAccess);
  EXPECT_FALSE(registration.reachable());
  EXPECT_EQ(Count(registrar, GpuRoute::kNone), 2);
  EXPECT_THAT(registrar.findings()[0].reason, HasSubstr("nvidia-peermem"));
  const int tries = verbs_.tries;
  EXPECT_FALSE(registrar.Register(At(0), kMiB, kAccess)->reachable());
  EXPECT_EQ(verbs_.tries, tries);
  EXPECT_EQ(Count(registrar, GpuRoute::kNone), 4);
  EXPECT_TRUE(registrar.AwaitVisible(registration).ok());
  EXPECT_EQ(gpu_.flushes, 0);
}

TEST_F(GpuRegistrationTest, EachDeviceGoesItsOwnWay) {
  verbs_.pcie_error = verbs_.plain_error = EPROTONOSUPPORT;
  verbs_.peer_error = EFAULT;
  verbs_.failing = &pds_[1];
  GpuRegistrar registrar = Registrar();
  auto registration = *registrar.Register(At(0), kMiB, kAccess);
  EXPECT_TRUE(registration.reachable());
  EXPECT_THAT(registration.pieces, ElementsAre(SizeIs(1), SizeIs(0)));
  EXPECT_EQ(Count(registrar, GpuRoute::kDmaBufPcie), 1);
  EXPECT_EQ(Count(registrar, GpuRoute::kNone), 1);
  registrar.Deregister(registration);
}

TEST_F(GpuRegistrationTest, MemoryThatCannotGoTheKnownWayIsTriedTheOthersByItself) {
  GpuRegistrar registrar = Registrar();
  auto first = *registrar.Register(At(0), kMiB, kAccess);
  gpu_.pcie = gpu_.plain = InvalidArgument("mapped by hand");
  auto odd = *registrar.Register(At(kMiB), kMiB, kAccess);
  EXPECT_TRUE(odd.reachable());
  EXPECT_EQ(Count(registrar, GpuRoute::kPeerMemory), 2);
  EXPECT_EQ(registrar.statistics().detours, 2);
  verbs_.peer_error = EFAULT;
  EXPECT_FALSE(registrar.Register(At(kMiB), kMiB, kAccess)->reachable());
  gpu_.pcie = absl::OkStatus();
  auto later = *registrar.Register(At(2 * kMiB), kMiB, kAccess);
  EXPECT_EQ(Count(registrar, GpuRoute::kDmaBufPcie), 4) << "what is known stays known";
  registrar.Deregister(first);
  registrar.Deregister(odd);
  registrar.Deregister(later);
}

TEST_F(GpuRegistrationTest, RangesAreCutWhereTheLargestRegionEnds) {
  Random random(5);
  for (int round = 0; round < 100; ++round) {
    const int64_t largest = std::array{int64_t{4096}, kMiB, 5 * kMiB, 8 * kMiB}[random.Below(4)];
    GpuRegistrar registrar = Registrar(largest);
    const int64_t offset = random.Between(0, kMiB);
    const int64_t bytes = random.Between(1, largest == 4096 ? kMiB : 60 * kMiB);
    auto registration = *registrar.Register(At(offset), bytes, kAccess);
    for (const auto& pieces : registration.pieces) {
      int64_t next = 0;
      for (const GpuPiece& piece : pieces) {
        ASSERT_EQ(piece.offset, next) << "no gap, no overlap";
        ASSERT_GT(piece.bytes, 0);
        ASSERT_LE(piece.bytes, largest);
        ASSERT_EQ(piece.mr->addr, At(offset + piece.offset));
        if (next > 0) {
          ASSERT_EQ((static_cast<uint64_t>(offset) + static_cast<uint64_t>(next)) % 4096, 0u);
        }
        next += piece.bytes;
      }
      ASSERT_EQ(next, bytes);
    }
    registrar.Deregister(registration);
  }
}

TEST_F(GpuRegistrationTest, APieceThatFailsTakesTheOthersOfItsTryWithIt) {
  verbs_.fail_after = 3;
  GpuRegistrar registrar = Registrar(2 * kMiB);
  auto registration = *registrar.Register(At(0), 16 * kMiB, kAccess);
  EXPECT_FALSE(registration.reachable());
  EXPECT_THAT(verbs_.live, SizeIs(0));
}

TEST_F(GpuRegistrationTest, OnlyGpuMemoryWithinOneAllocationIsTaken) {
  GpuRegistrar registrar = Registrar();
  int host = 0;
  for (const auto& status :
       {registrar.Register(&host, 4, kAccess).status(),
        registrar.Register(At(0), kBytes + 1, kAccess).status(),
        registrar.Register(At(kBytes - 8), 9, kAccess).status(),
        registrar.Register(At(0), 0, kAccess).status(),
        registrar.Register(At(8), std::numeric_limits<int64_t>::max(), kAccess).status()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << Describe(status);
  }
  EXPECT_EQ(verbs_.tries, 0);
}

TEST_F(GpuRegistrationTest, WritesAreFlushedWhereTheGpuDoesNotOrderThem) {
  GpuRegistrar registrar = Registrar();
  auto registration = *registrar.Register(At(0), kMiB, kAccess);
  ASSERT_TRUE(registrar.AwaitVisible(registration).ok());
  EXPECT_EQ(gpu_.flushes, 0) << "not needed";
  gpu_.device.remote_writes = RemoteWrites::kFlushed;
  ASSERT_TRUE(registrar.AwaitVisible(registration).ok());
  EXPECT_EQ(gpu_.flushes, 1);
  EXPECT_EQ(registrar.statistics().flushes, 1);
  registrar.Deregister(registration);
}

TEST_F(GpuRegistrationTest, MemoryWhoseWritesCannotBeFlushedIsNotRegistered) {
  gpu_.device.remote_writes = RemoteWrites::kCannotBeFlushed;
  GpuRegistrar registrar = Registrar();
  EXPECT_FALSE(registrar.Register(At(0), kMiB, kAccess)->reachable());
  EXPECT_EQ(verbs_.tries, 0);
}

TEST_F(GpuRegistrationTest, AFailingPreparationHoldsNothingUp) {
  gpu_.prepare = InvalidArgument("memory mapped by hand");
  GpuRegistrar registrar = Registrar();
  auto registration = *registrar.Register(At(0), kMiB, kAccess);
  EXPECT_TRUE(registration.reachable());
  registrar.Deregister(registration);
}

TEST_F(GpuRegistrationTest, AnInvalidFileTellsWhetherDmaBufIsKnown) {
  for (const auto& [error, expected] :
       {std::pair{EBADF, DmaBufSupport::kYes}, std::pair{EOPNOTSUPP, DmaBufSupport::kNo},
        std::pair{EPROTONOSUPPORT, DmaBufSupport::kNo}, std::pair{ENOSYS, DmaBufSupport::kNo},
        std::pair{EINVAL, DmaBufSupport::kUnknown}}) {
    verbs_.invalid_file_error = error;
    EXPECT_EQ(ProbeDmaBuf(verbs_, &pds_[0]), expected) << error;
  }
}

}  // namespace
}  // namespace shoal::transport

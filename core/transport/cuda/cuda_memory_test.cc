// CudaMemory over the test's own driver, and, if there is one, over the machine's.
#include "core/transport/cuda/cuda_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/transport/testing/host_pins.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

constexpr int kGreatestPriority = -5;

using ::testing::HasSubstr;

// What the fake driver should say, and what it was told. Its functions are plain ones, so there is
// only one.
struct Fake {
  int count = 1;
  int ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
  int flush_options = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
  bool dma_buf = true;
  CUresult export_pcie = CUDA_SUCCESS;
  unsigned int type = CU_MEMORYTYPE_DEVICE;
  unsigned int managed = 0;
  CUresult pointer = CUDA_SUCCESS;

  int contexts_held = 0;
  bool pins_read_only = false;
  int flushes = 0;
  bool synchronous_copies = false;
  std::vector<unsigned long long> export_flags;
  int streams = 0;
  int looks = 0;
  CUresult copied = CUDA_SUCCESS;
  CUresult opened = CUDA_SUCCESS;
  int shares_open = 0;
  int on_gpu = 0;  // the GPU that holds all GPU memory
  std::vector<unsigned int> pin_flags;
  std::optional<HostPins> pins;
};
Fake fake;

// Contexts of this thread; the driver refuses calls of a thread without one.
thread_local int contexts_pushed = 0;
CUresult InContext() { return contexts_pushed > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }

CUresult PointerAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr) {
  if (contexts_pushed == 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (fake.pointer != CUDA_SUCCESS) {
    return fake.pointer;
  }
  const unsigned int value = attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? fake.type
                             : attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED
                                 ? fake.managed
                                 : static_cast<unsigned int>(fake.on_gpu);
  std::memcpy(data, &value, sizeof(value));
  return CUDA_SUCCESS;
}

CUresult Attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
      *value = fake.ordering;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
      *value = fake.flush_options;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
      *value = fake.dma_buf ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
      *value = fake.pins_read_only ? 1 : 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult Pin(void* memory, size_t bytes, unsigned int flags) {
  if (contexts_pushed == 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  fake.pin_flags.push_back(flags);
  if (!fake.pins.has_value()) {
    fake.pins.emplace(fake.pins_read_only);
  }
  const absl::Status status = fake.pins->Pin({static_cast<std::byte*>(memory), bytes},
                                             (flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0);
  return status.ok()                       ? CUDA_SUCCESS
         : absl::IsUnimplemented(status)   ? CUDA_ERROR_NOT_SUPPORTED
         : absl::IsInvalidArgument(status) ? CUDA_ERROR_INVALID_VALUE
                                           : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult Export(void* handle, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long flags) {
  fake.export_flags.push_back(flags);
  if (flags != 0 && fake.export_pcie != CUDA_SUCCESS) {
    return fake.export_pcie;
  }
  const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::memcpy(handle, &fd, sizeof(fd));
  return CUDA_SUCCESS;
}

CudaDriver FakeDriver() {
  CudaDriver driver;
  driver.init = [](unsigned int) { return CUDA_SUCCESS; };
  driver.error_name = [](CUresult, const char** name) {
    *name = "CUDA_ERROR_OF_THE_TEST";
    return CUDA_SUCCESS;
  };
  driver.device_count = [](int* count) {
    *count = fake.count;
    return CUDA_SUCCESS;
  };
  driver.device = [](CUdevice* device, int index) {
    *device = index;
    return CUDA_SUCCESS;
  };
  driver.device_name = [](char* name, int bytes, CUdevice) {
    std::strncpy(name, "Test GPU", static_cast<size_t>(bytes));
    return CUDA_SUCCESS;
  };
  driver.pci_address = [](char* name, int bytes, CUdevice) {
    std::strncpy(name, "0000:1b:00.0", static_cast<size_t>(bytes));
    return CUDA_SUCCESS;
  };
  driver.attribute = Attribute;
  driver.retain_context = [](CUcontext* context, CUdevice) {
    ++fake.contexts_held;
    *context = reinterpret_cast<CUcontext>(&fake);
    return CUDA_SUCCESS;
  };
  driver.release_context = [](CUdevice) {
    --fake.contexts_held;
    return CUDA_SUCCESS;
  };
  driver.push_context = [](CUcontext) {
    ++contexts_pushed;
    return CUDA_SUCCESS;
  };
  driver.pop_context = [](CUcontext*) {
    --contexts_pushed;
    return CUDA_SUCCESS;
  };
  driver.pointer_attribute = PointerAttribute;
  driver.set_pointer_attribute = [](const void* value, CUpointer_attribute attribute, CUdeviceptr) {
    fake.synchronous_copies = attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS &&
                              *static_cast<const unsigned int*>(value) == 1;
    return InContext();
  };
  driver.address_range = [](CUdeviceptr* begin, size_t* bytes, CUdeviceptr) {
    *begin = 0x10000;
    *bytes = 0x8000;
    return InContext();
  };
  driver.uuid = [](CUuuid* uuid, CUdevice device) {
    std::fill_n(uuid->bytes, sizeof(uuid->bytes), static_cast<char>(0xA0 + device));
    return CUDA_SUCCESS;
  };
  driver.share = [](CUipcMemHandle* handle, CUdeviceptr begin) {
    std::memcpy(handle->reserved, &begin, sizeof(begin));
    return CUDA_SUCCESS;
  };
  driver.open_share = [](CUdeviceptr* opened, CUipcMemHandle handle, unsigned int flags) {
    std::memcpy(opened, handle.reserved, sizeof(*opened));
    const bool peers = (flags & CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != 0;
    fake.shares_open += fake.opened == CUDA_SUCCESS ? 1 : 0;
    return peers ? fake.opened : CUDA_ERROR_INVALID_VALUE;
  };
  driver.close_share = [](CUdeviceptr) {
    --fake.shares_open;
    return CUDA_SUCCESS;
  };
  driver.export_range = Export;
  driver.flush_remote_writes = [](CUflushGPUDirectRDMAWritesTarget,
                                  CUflushGPUDirectRDMAWritesScope scope) {
    fake.flushes += scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER ? 1 : 0;
    return CUDA_SUCCESS;
  };
  driver.stream_priorities = [](int* least, int* greatest) {
    *least = 0;
    *greatest = kGreatestPriority;
    return InContext();
  };
  driver.create_stream = [](CUstream* stream, unsigned int, int priority) {
    EXPECT_EQ(priority, kGreatestPriority);
    *stream = reinterpret_cast<CUstream>(&fake);
    ++fake.streams;
    return InContext();
  };
  driver.destroy_stream = [](CUstream) {
    --fake.streams;
    return CUDA_SUCCESS;
  };
  driver.look_at_stream = [](CUstream) {
    ++fake.looks;
    return fake.looks % 3 == 0 ? fake.copied : CUDA_ERROR_NOT_READY;
  };
  driver.copy = [](CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return InContext();
  };
  driver.pin = Pin;
  driver.unpin = [](void* memory) {
    return fake.pins->Unpin(static_cast<std::byte*>(memory))
               ? CUDA_SUCCESS
               : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  };
  return driver;
}

const void* const kAddress = reinterpret_cast<const void*>(0x11000);

class CudaMemoryTest : public testing::Test {
 protected:
  void SetUp() override { fake = {}; }
  void TearDown() override {
    EXPECT_EQ(contexts_pushed, 0);
    EXPECT_EQ(fake.contexts_held, 0);
    EXPECT_EQ(fake.streams, 0);
    EXPECT_EQ(fake.shares_open, 0);
  }
};

TEST_F(CudaMemoryTest, DescribesGpusByTheirAttributes) {
  struct Case {
    int ordering;
    int options;
    RemoteWrites expected;
  };
  for (const Case& c :
       {Case{0, 0, RemoteWrites::kCannotBeFlushed},
        Case{0, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS, RemoteWrites::kCannotBeFlushed},
        Case{0, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST, RemoteWrites::kFlushed},
        Case{100, 0, RemoteWrites::kVisible}, Case{200, 3, RemoteWrites::kVisible}}) {
    fake.ordering = c.ordering;
    fake.flush_options = c.options;
    const auto memory = *OpenCudaMemory(FakeDriver());
    ASSERT_EQ(memory->gpus(), 1);
    EXPECT_EQ(memory->gpu(0).remote_writes, c.expected) << c.ordering << " " << c.options;
    EXPECT_EQ(memory->gpu(0).name, "Test GPU");
    EXPECT_EQ(memory->gpu(0).pci_address, "0000:1b:00.0");
    EXPECT_TRUE(memory->gpu(0).dma_buf);
  }
}

TEST_F(CudaMemoryTest, AnOldDriverExportsAndFlushesNothing) {
  CudaDriver driver = FakeDriver();
  driver.export_range = nullptr;
  driver.flush_remote_writes = nullptr;
  const auto memory = *OpenCudaMemory(driver);
  EXPECT_FALSE(memory->gpu(0).dma_buf);
  EXPECT_EQ(memory->gpu(0).remote_writes, RemoteWrites::kCannotBeFlushed);
  EXPECT_TRUE(absl::IsUnimplemented(
      memory->ExportDmaBuf(kAddress, 4096, DmaBufMapping::kDefault).status()));
  EXPECT_TRUE(absl::IsUnimplemented(memory->FlushRemoteWrites(0)));
}

TEST_F(CudaMemoryTest, NoGpuIsNotFound) {
  fake.count = 0;
  EXPECT_TRUE(absl::IsNotFound(OpenCudaMemory(FakeDriver()).status()));
  CudaDriver driver = FakeDriver();
  driver.init = [](unsigned int) { return CUDA_ERROR_NO_DEVICE; };
  EXPECT_TRUE(absl::IsNotFound(OpenCudaMemory(driver).status()));
  EXPECT_TRUE(absl::IsNotFound(LoadCudaDriver("libno-such-driver.so.1").status()));
}

TEST_F(CudaMemoryTest, TellsGpuMemoryFromHostMemory) {
  const auto memory = *OpenCudaMemory(FakeDriver());
  const auto found = memory->Find(kAddress);
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->begin, 0x10000u);
  EXPECT_EQ((*found)->bytes, 0x8000);
  fake.managed = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(memory->Find(kAddress).status()));
  fake.type = CU_MEMORYTYPE_HOST;
  EXPECT_EQ(*memory->Find(kAddress), std::nullopt);
  fake.pointer = CUDA_ERROR_INVALID_VALUE;
  EXPECT_EQ(*memory->Find(kAddress), std::nullopt) << "nothing that CUDA knows";
  fake.pointer = CUDA_ERROR_INVALID_CONTEXT;
  EXPECT_EQ(*memory->Find(kAddress), std::nullopt);
  fake.pointer = CUDA_ERROR_DEINITIALIZED;
  EXPECT_FALSE(memory->Find(kAddress).ok());
}

TEST_F(CudaMemoryTest, ExportsOverTheMappingThatIsAskedFor) {
  const auto memory = *OpenCudaMemory(FakeDriver());
  EXPECT_TRUE(memory->ExportDmaBuf(kAddress, 4096, DmaBufMapping::kPcie)->valid());
  EXPECT_TRUE(memory->ExportDmaBuf(kAddress, 4096, DmaBufMapping::kDefault)->valid());
  EXPECT_THAT(fake.export_flags,
              testing::ElementsAre(CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, 0));
  fake.export_pcie = CUDA_ERROR_NOT_SUPPORTED;
  const absl::Status status = memory->ExportDmaBuf(kAddress, 4096, DmaBufMapping::kPcie).status();
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(std::string(Message(status)), HasSubstr("CUDA_ERROR_OF_THE_TEST"));
}

TEST_F(CudaMemoryTest, FlushesWhereTheGpuNeedsIt) {
  {
    const auto memory = *OpenCudaMemory(FakeDriver());
    EXPECT_TRUE(memory->FlushRemoteWrites(0).ok());
    EXPECT_TRUE(memory->Prepare(kAddress).ok());
  }
  EXPECT_EQ(fake.flushes, 1);
  EXPECT_TRUE(fake.synchronous_copies);
  fake.ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
  EXPECT_TRUE((*OpenCudaMemory(FakeDriver()))->FlushRemoteWrites(0).ok());
  EXPECT_EQ(fake.flushes, 1);
}

std::span<const std::byte> Range(uintptr_t begin, size_t size) {
  return {reinterpret_cast<const std::byte*>(begin), size};
}

// Otherwise GPUs of all machines that do not report a UUID would count as one.
TEST(GpuNameTest, IsOfThoseAloneThatTellTheirs) { EXPECT_EQ(GpuName({}), ""); }

TEST_F(CudaMemoryTest, SharesARangeOfAnAllocationThatOthersOpen) {
  fake.count = 2;
  fake.on_gpu = 1;
  const auto owner = *OpenCudaMemory(FakeDriver());
  const GpuShare share = *owner->Share(Range(0x11000, 0x2000));
  EXPECT_EQ(share.offset, 0x1000);
  EXPECT_EQ(share.bytes, 0x2000);
  EXPECT_EQ(GpuName(share.gpu), "GPU-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1");
  EXPECT_TRUE(absl::IsInvalidArgument(owner->Share(Range(0x11000, 0x8000)).status()));

  const auto other = *OpenCudaMemory(FakeDriver());
  const OpenedShare opened = *other->Open(share);
  EXPECT_EQ(opened.memory.data(), Range(0x11000, 1).data());
  EXPECT_EQ(opened.memory.size(), 0x2000u);
  EXPECT_EQ(opened.allocation, Range(0x10000, 1).data());
  other->Close(opened);
}

TEST_F(CudaMemoryTest, TrustsNothingInAShare) {
  const auto memory = *OpenCudaMemory(FakeDriver());
  const GpuShare good = *memory->Share(Range(0x10000, 0x8000));
  for (const auto& [offset, bytes] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 0x8000}, {-1, 1}, {0, 0}, {0, -1}, {0x8001, 1}, {0x7FFFFFFFFFFFFFFF, 2}}) {
    GpuShare share = good;
    share.offset = offset;
    share.bytes = bytes;
    EXPECT_TRUE(absl::IsInvalidArgument(memory->Open(share).status())) << offset << " " << bytes;
  }
  GpuShare elsewhere = good;
  elsewhere.gpu.fill('e');
  const absl::Status unseen = memory->Open(elsewhere).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(unseen));
  EXPECT_THAT(std::string(Message(unseen)), HasSubstr("GPU-65656565-6565-"));
  elsewhere.gpu = {};
  EXPECT_TRUE(absl::IsFailedPrecondition(memory->Open(elsewhere).status()));
  fake.opened = CUDA_ERROR_INVALID_HANDLE;
  EXPECT_TRUE(absl::IsNotFound(memory->Open(good).status()));
}

TEST_F(CudaMemoryTest, WithoutUuidsNothingIsShared) {
  CudaDriver driver = FakeDriver();
  driver.uuid = nullptr;
  const auto memory = *OpenCudaMemory(driver);
  EXPECT_TRUE(absl::IsUnimplemented(memory->Share(Range(0x10000, 64)).status()));
}

TEST_F(CudaMemoryTest, CopiesOverAStreamThatIsUsedAgain) {
  const auto memory = *OpenCudaMemory(FakeDriver());
  std::array<int, 4> from = {1, 2, 3, 4};
  std::array<int, 4> to = {};
  for (int i = 0; i < 3; ++i) {
    to = {};
    const GpuCopy halves[] = {{&to[0], &from[0], 8}, {&to[2], &from[2], 8}};
    ASSERT_TRUE(memory->Copy(halves).ok());
    EXPECT_EQ(to, from);
  }
  EXPECT_EQ(fake.streams, 1);
  EXPECT_EQ(fake.looks, 9) << "until they are done, once for each call";
  EXPECT_TRUE(memory->Copy({}).ok());
  const GpuCopy whole = {to.data(), from.data(), sizeof(from)};
  fake.copied = CUDA_ERROR_ILLEGAL_ADDRESS;
  const absl::Status failed = memory->Copy({&whole, 1});
  EXPECT_THAT(std::string(Message(failed)), HasSubstr("cuStreamQuery"));
  fake.type = CU_MEMORYTYPE_HOST;
  EXPECT_TRUE(absl::IsInvalidArgument(memory->Copy({&whole, 1})));
}

// Advances by itself when it is read or slept on.
class HastyClock final : public Clock {
 public:
  absl::Time Now() const override { return now_ += absl::Microseconds(10); }
  void SleepFor(absl::Duration duration) override { now_ += duration; }

 private:
  mutable absl::Time now_ = absl::UnixEpoch();
};

TEST_F(CudaMemoryTest, CopiesThatDoNotEndAreGivenUp) {
  HastyClock clock;
  const auto memory = *OpenCudaMemory(FakeDriver(), 0, clock);
  std::array<int, 4> from = {1, 2, 3, 4};
  std::array<int, 4> to = {};
  const GpuCopy whole = {to.data(), from.data(), sizeof(from)};
  fake.copied = CUDA_ERROR_NOT_READY;
  const absl::Status status = memory->Copy({&whole, 1});
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(Message(status), "copies of a GPU: not done within 1m");
  EXPECT_EQ(fake.streams, 0) << "one that is still at work is not used again";
  fake.copied = CUDA_SUCCESS;
  EXPECT_TRUE(memory->Copy({&whole, 1}).ok());
}

TEST_F(CudaMemoryTest, PinsMemoryThatItMayNotWriteWhereTheGpuCan) {
  constexpr size_t kBytes = 4096;
  void* const mapped = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, /*fd=*/-1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const std::span<const std::byte> read_only(static_cast<const std::byte*>(mapped), kBytes);
  std::array<std::byte, 64> bytes = {};
  for (const bool can : {false, true}) {
    fake.pins_read_only = can;
    fake.pins.reset();
    fake.pin_flags.clear();
    const auto memory = *OpenCudaMemory(FakeDriver());
    EXPECT_EQ(memory->PinsReadOnly(), can);
    EXPECT_TRUE(memory->Pin(bytes, /*writable=*/true).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(memory->Pin(read_only, /*writable=*/true)));
    EXPECT_EQ(memory->Pin(read_only, /*writable=*/false).code(),
              can ? absl::StatusCode::kOk : absl::StatusCode::kUnimplemented);
    EXPECT_EQ(fake.pin_flags.size(), can ? 3u : 2u) << "what it cannot is not asked for";
    EXPECT_EQ(fake.pin_flags[0], CU_MEMHOSTREGISTER_PORTABLE);
    EXPECT_EQ(fake.pin_flags.back() & CU_MEMHOSTREGISTER_READ_ONLY,
              can ? CU_MEMHOSTREGISTER_READ_ONLY : 0);
    memory->Unpin(bytes);
    if (can) {
      memory->Unpin(read_only);
    }
    EXPECT_EQ(fake.pins->count(), 0u);
  }
  ::munmap(mapped, kBytes);
}

// Transports call from threads of their own.
TEST_F(CudaMemoryTest, ThreadsWithoutAContextMayCall) {
  const auto memory = *OpenCudaMemory(FakeDriver());
  std::thread([&] {
    EXPECT_EQ(contexts_pushed, 0);
    EXPECT_TRUE((*memory->Find(kAddress)).has_value());
    EXPECT_TRUE(memory->Prepare(kAddress).ok());
    EXPECT_EQ(contexts_pushed, 0);
  }).join();
}

TEST(CudaMemoryOnThisMachine, KnowsItsOwnMemoryFromTheHosts) {
  const auto memory = OpenCudaMemory();
  if (!memory.ok()) {
    GTEST_SKIP() << Describe(memory.status());
  }
  int local = 0;
  EXPECT_EQ(*(*memory)->Find(&local), std::nullopt);
}

}  // namespace
}  // namespace shoal::transport

// The device's memory, streams and random numbers: the CPU's, under another name.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <cstring>
#include <mutex>

namespace virtual_device {
namespace {

// -- memory

// Of what is allocated; nothing is cached, so what is reserved is the same.
class Statistics {
 public:
  void allocated(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Stat* stat : of_bytes()) {
      stat->increase(bytes);
    }
    of_blocks()->increase(1);
  }
  void freed(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Stat* stat : of_bytes()) {
      stat->decrease(bytes);
    }
    of_blocks()->decrease(1);
  }
  c10::CachingDeviceAllocator::DeviceStats read() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }
  void forget_peaks() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Stat* stat : of_bytes()) {
      stat->reset_peak();
    }
    of_blocks()->reset_peak();
  }
  void forget_totals() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Stat* stat : of_bytes()) {
      stat->reset_accumulated();
    }
    of_blocks()->reset_accumulated();
  }

 private:
  using Stat = c10::CachingAllocator::Stat;

  std::array<Stat*, 4> of_bytes() {
    return {stats_.allocated_bytes.data(), stats_.reserved_bytes.data(),
            stats_.active_bytes.data(), stats_.requested_bytes.data()};
  }
  Stat* of_blocks() {
    return stats_.allocation.data();
  }

  mutable std::mutex mutex_;
  c10::CachingDeviceAllocator::DeviceStats stats_; // its first entries are the sums
};

Statistics& statistics() {
  static Statistics* const kept = new Statistics; // tensors may be freed after static objects are
  return *kept;
}

struct Block {
  c10::DataPtr memory; // the CPU's
  size_t bytes;
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  statistics().freed(block->bytes);
  delete block;
}

class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = c10::GetCPUAllocator()->allocate(bytes);
    void* const data = memory.get();
    return adopted(data, bytes, std::move(memory));
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr; // a pointer alone does not tell its block
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    return statistics().read();
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {
    statistics().forget_totals();
  }
  void resetPeakStats(c10::DeviceIndex) override {
    statistics().forget_peaks();
  }
};

Memory& memory() {
  static Memory* const kept = new Memory;
  return *kept;
}

// -- streams: there is one, and it is always idle

template <c10::DeviceType type>
struct Guard final : public c10::impl::NoOpDeviceGuardImpl<type> {
  static c10::Stream only() {
    return c10::Stream(c10::Stream::DEFAULT, the_device());
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return the_device();
  }
  c10::Device getDevice() const override {
    return the_device();
  }
  c10::Stream getStream(c10::Device) const noexcept override {
    return only();
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return only();
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    return only();
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override {
    return only();
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag)
      const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
};

const Guard<c10::DeviceType::CUDA> cuda_guard;
const Guard<c10::DeviceType::PrivateUse1> private_use_guard;

// -- random numbers: the CPU's sequence for the same seed

class Generator final : public at::CPUGeneratorImpl {
 public:
  Generator() {
    device_ = the_device();
    key_set_ = c10::DispatchKeySet(identity.key);
  }

 private:
  at::CPUGeneratorImpl* clone_impl() const override {
    auto* copy = new Generator;
    copy->set_state(*get_state());
    return copy;
  }
};

const at::Generator& the_generator() {
  static auto* const kept = new at::Generator(at::make_generator<Generator>());
  return *kept;
}

// -- what torch asks of a device

template <typename Interface>
struct Hooks : public Interface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  void init() const override {}
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return 1;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  // Pinned memory is the host's own here; torch asks the allocator for it.
  bool isPinnedPtr(const void*) const override {
    return false;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetCPUAllocator();
  }
  c10::Device getDeviceFromPtr(void*) const override {
    return the_device();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return the_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<Generator>();
  }
};

struct CudaHooks final : public Hooks<at::CUDAHooksInterface> {
  bool hasCUDA() const override {
    return true;
  }
  c10::DeviceIndex current_device() const override {
    return 0;
  }
  int getNumGPUs() const override {
    return 1;
  }
  c10::Allocator* getCUDADeviceAllocator() const override {
    return &memory();
  }
  std::string showConfig() const override {
    return "  - ampbridge's virtual CUDA device\n";
  }
  void deviceSynchronize(c10::DeviceIndex) const override {
    note_wait("synchronize", "torch.cuda.synchronize");
  }
};

struct PrivateUseHooks final : public Hooks<at::PrivateUse1HooksInterface> {
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr larger = memory().allocate(bytes);
    std::memcpy(larger.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr(std::move(larger));
    storage.set_nbytes(bytes);
  }
};

} // namespace

void register_memory() {
  c10::SetAllocator(identity.type, &memory());
  if (is_cuda()) {
    c10::impl::registerDeviceGuard(identity.type, &cuda_guard);
    // Torch looks them up once, when it is first asked for CUDA.
    at::CUDAHooksRegistry()->Register(
        "CUDAHooks", [](at::CUDAHooksArgs) { return std::make_unique<CudaHooks>(); });
  } else {
    c10::impl::registerDeviceGuard(identity.type, &private_use_guard);
    at::RegisterPrivateUse1HooksInterface(new PrivateUseHooks);
  }
}

c10::DeviceAllocator* allocator() {
  return &memory();
}

c10::DataPtr adopted(void* data, size_t bytes, c10::DataPtr keeps) {
  statistics().allocated(bytes);
  return {data, new Block{std::move(keeps), bytes}, &free_block, the_device()};
}

at::Generator default_generator() {
  return the_generator();
}

} // namespace virtual_device

// What the device notes: the kernels it runs, and each place where the host waits for it.
#include "device.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace virtual_device {
namespace {

using OnWait = void (*)(const char* kind, const char* op);
using OnCall = void (*)(const char* op, const char* dtypes, const char* asked);

std::mutex mutex;
std::map<std::pair<std::string, std::string>, int64_t> calls; // by op and dtypes
std::map<std::pair<std::string, std::string>, int64_t> waits; // by kind and op
std::atomic<bool> noting{false};
std::atomic<OnWait> on_wait{nullptr};
std::atomic<OnCall> on_call{nullptr};
std::atomic<int64_t> sync_debug_mode{0};
std::atomic<int64_t> nanoseconds{0}; // in kernels

using Counted = std::vector<std::tuple<std::string, std::string, int64_t>>;

Counted counted(const std::map<std::pair<std::string, std::string>, int64_t>& counts) {
  std::lock_guard<std::mutex> lock(mutex);
  Counted listed;
  for (const auto& [names, count] : counts) {
    listed.emplace_back(names.first, names.second, count);
  }
  return listed;
}

} // namespace

Timed::~Timed() {
  const auto passed = std::chrono::steady_clock::now() - begin_;
  nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count();
}

bool calls_are_noted() {
  return noting || on_call.load();
}

void note_call(const std::string& op, const std::string& dtypes, const char* asked) {
  if (noting) {
    std::lock_guard<std::mutex> lock(mutex);
    ++calls[{op, dtypes}];
  }
  if (OnCall tell = on_call) {
    tell(op.c_str(), dtypes.c_str(), asked);
  }
}

void note_wait(const char* kind, const std::string& op) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    ++waits[{kind, op}];
  }
  if (OnWait tell = on_wait) {
    tell(kind, op.c_str());
  }
  // The words of c10/cuda/CUDAFunctions.cpp.
  TORCH_CHECK(sync_debug_mode != 2, "called a synchronizing CUDA operation");
  if (sync_debug_mode == 1) {
    TORCH_WARN("called a synchronizing CUDA operation");
  }
}

} // namespace virtual_device

using namespace virtual_device;

TORCH_LIBRARY(virtual_cuda, m) {
  m.def("calls", [] { return counted(calls); });
  m.def("waits", [] { return counted(waits); });
  m.def("note_calls(bool on) -> ()", [](bool on) { noting = on; });
  m.def("forget() -> ()", [] {
    std::lock_guard<std::mutex> lock(mutex);
    calls.clear();
    waits.clear();
    nanoseconds = 0;
  });
  m.def("nanoseconds", [] { return nanoseconds.load(); });
  m.def("on_wait(int address) -> ()", [](int64_t address) {
    on_wait = reinterpret_cast<OnWait>(address);
  });
  m.def("on_call(int address) -> ()", [](int64_t address) {
    on_call = reinterpret_cast<OnCall>(address);
  });
  m.def("sync_debug_mode() -> int", [] { return sync_debug_mode.load(); });
  m.def("set_sync_debug_mode(int mode) -> ()", [](int64_t mode) { sync_debug_mode = mode; });
  m.def("synchronize() -> ()", [] { note_wait("synchronize", "synchronize"); });
  m.def("default_generator", [] { return default_generator(); });
  m.def("memory() -> int[]", [] {
    const auto stats = allocator()->getDeviceStats(0);
    const auto& held = stats.allocated_bytes[0];
    const auto& blocks = stats.allocation[0];
    return std::vector<int64_t>{held.current, held.peak, held.allocated, held.freed,
                                blocks.current, blocks.peak, blocks.allocated, blocks.freed};
  });
  m.def("reset_peak_memory() -> ()", [] { allocator()->resetPeakStats(0); });
  m.def("reset_accumulated_memory() -> ()", [] { allocator()->resetAccumulatedStats(0); });
}

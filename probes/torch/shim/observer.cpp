// Watches every top-level operator through at::RecordFunction, and every activation's gradient through tensor hooks.
//
// The callback is registered per thread, not globally: removing a global callback must not run beside other code, and other
// threads of the program (data loading) neither pay for the observer nor confuse it. Autograd hands the thread-local
// callbacks on to the device threads that run backward.
#include "observer.h"

#include "describe.h"

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/version.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using ampdoctor::describe;
using ampdoctor::each_tensor;

namespace {

std::atomic<int> planted{0};

void fail_if_planted(int callback) {
  if (planted.load(std::memory_order_relaxed) == callback) {
    throw std::runtime_error("planted exception");
  }
}

// The observer's side of the border, shared with hooks that may outlive the observer itself.
struct Attachment {
  void* handle;
  // Time in callbacks since it was last taken, both sides of the border together.
  std::atomic<uint64_t> spent_ns{0};
  explicit Attachment(void* h) : handle(h) {}
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;
  ~Attachment() { ampd_release_attachment(handle); }
};

// Adds the time from here to the end of the scope to what the attachment has cost.
class Stopwatch {
 public:
  explicit Stopwatch(Attachment& attachment) : attachment_(attachment), began_(std::chrono::steady_clock::now()) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    const auto spent = std::chrono::steady_clock::now() - began_;
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
    attachment_.spent_ns.fetch_add(static_cast<uint64_t>(ns), std::memory_order_relaxed);
  }

 private:
  Attachment& attachment_;
  std::chrono::steady_clock::time_point began_;
};

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

struct Watch {
  std::shared_ptr<Attachment> attachment;
  std::atomic<bool> active{true};
  std::atomic<bool> other_profiler{false};
  // A weak reference keeps a StorageImpl's address from being used again within the step, and keeps no data alive.
  std::vector<WeakStorage> remembered;
  std::mutex remembering;  // a doctor may be stepped or dropped on another thread than the one observed

  void remember(const at::Tensor& t) {
    const std::lock_guard<std::mutex> lock(remembering);
    remembered.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(ampdoctor::storage_of(t)));
  }
  void forget() {
    const std::lock_guard<std::mutex> lock(remembering);
    remembered.clear();
  }
};

using Observer = std::shared_ptr<Watch>;

// The last observer installed anywhere, for backward threads that LibTorch started itself.
std::mutex latest_mutex;
std::weak_ptr<Watch> latest;

void set_latest(const Observer& watch) {
  const std::lock_guard<std::mutex> lock(latest_mutex);
  latest = watch;
}

Observer get_latest() {
  const std::lock_guard<std::mutex> lock(latest_mutex);
  return latest.lock();
}

std::atomic<int> observers{0};

struct Thread {
  Observer observer;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
  bool enabled = false;
  int operators = 0;  // open operators, where nested ones cannot be hidden
  int backward = 0;   // open evaluate_function records
};

Thread& thread() {
  static thread_local Thread t;
  return t;
}

struct Described {
  c10::SmallVector<ampd_tensor, 8> tensors;
  void add(const at::Tensor& t) {
    ampd_tensor out;
    if (describe(t, &out)) tensors.push_back(out);
  }
};

bool starts_with(const char* text, const char* prefix) { return std::strncmp(text, prefix, std::strlen(prefix)) == 0; }

struct Context : at::ObserverContext {
  Observer observer;
  bool hides_nested = false;
  bool counts = false;
  bool evaluates = false;
  bool reported = false;
};

void report_failure(const Observer& observer, const char* where) {
  try {
    throw;
  } catch (const std::exception& e) {
    ampd_on_failure(observer->attachment->handle, where, e.what());
  } catch (...) {
    ampd_on_failure(observer->attachment->handle, where, "an unknown C++ exception");
  }
}

Observer observer_of(Thread& t) {
  if (t.observer) return t.observer;
  // A backward thread of autograd: unambiguous only while one observer lives.
  return observers.load(std::memory_order_relaxed) > 1 ? nullptr : get_latest();
}

bool other_callbacks(const Watch& observer) {
  return at::get_record_function_tls_().sorted_tls_callbacks_.size() > 1 ||
         observer.other_profiler.load(std::memory_order_relaxed);
}

void remember_leaves(const Observer& observer, const at::RecordFunction& fn) {
  for (const auto& input : fn.inputs()) {
    each_tensor(input, [&](const at::Tensor& t) {
      if (t.defined() && t.requires_grad() && !ampdoctor::is_tracked(t) && ampdoctor::storage_of(t) != nullptr) observer->remember(t);
    });
  }
}

bool report_start(const Observer& observer, const at::RecordFunction& fn, ampd_op_kind kind) {
  Described described;
  c10::SmallVector<double, 4> scalars;
  for (const auto& input : fn.inputs()) {
    if (input.isDouble()) scalars.push_back(input.toDouble());
    if (input.isInt()) scalars.push_back(static_cast<double>(input.toInt()));
    each_tensor(input, [&](const at::Tensor& t) { described.add(t); });
  }
  const int64_t sequence =
      kind == AMPD_OPERATOR ? static_cast<int64_t>(at::sequence_number::peek()) : fn.seqNr();
  ampd_op op{fn.name(), kind, at::GradMode::is_enabled(), sequence, described.tensors.data(), described.tensors.size(),
             scalars.data(), scalars.size()};
  fail_if_planted(AMPD_IN_START);
  const int wanted = ampd_on_start(observer->attachment->handle, &op);
  if ((wanted & AMPD_WANTS_REMEMBER) != 0) remember_leaves(observer, fn);
  return (wanted & AMPD_WANTS_END) != 0;
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  Thread& t = thread();
  Observer observer = observer_of(t);
  if (!observer || !observer->active.load(std::memory_order_relaxed)) return nullptr;
  const Stopwatch stopwatch(*observer->attachment);
  auto context = std::make_unique<Context>();
  try {
    const char* name = fn.name();
    context->observer = observer;
    if (fn.scope() == at::RecordScope::FUNCTION && starts_with(name, "autograd::engine::evaluate_function")) {
      context->evaluates = true;
      if (t.backward++ == 0) ampd_on_backward(observer->attachment->handle);
      if (std::strstr(name, "DifferentiableGraphBackward") != nullptr) ampd_on_compiled_graph(observer->attachment->handle);
      return context;
    }
    const bool node = fn.scope() == at::RecordScope::BACKWARD_FUNCTION;
    if (t.operators > 0) {
      context->counts = true;
      t.operators++;
      return context;
    }
    // From here on nested operators must not call back: switched off where nobody else listens, else counted.
    if (other_callbacks(*observer)) {
      context->counts = true;
      t.operators++;
    } else {
      context->hides_nested = true;
      at::enableRecordFunction(false);
    }
    if (t.backward == 0 && !node) {
      context->reported = report_start(observer, fn, AMPD_OPERATOR);
    } else if (node && std::strcmp(name, "ToCopyBackward0") == 0) {
      report_start(observer, fn, AMPD_BACKWARD_NODE);
    }
  } catch (...) {
    report_failure(observer, "operator start");
  }
  ampdoctor::release_copies();
  return context;
}

void add_hook(const Observer& observer, const at::Tensor& output, uint64_t token) {
  std::shared_ptr<Attachment> attachment = observer->attachment;
  // LibTorch takes any throw in a hook for a failure of the user's backward.
  output.register_hook([attachment, token](const at::TensorBase& base) {
    const Stopwatch stopwatch(*attachment);
    try {
      const at::Tensor gradient(base);
      ampd_tensor described;
      if (!ampdoctor::describe_gradient(gradient, &described)) return;
      fail_if_planted(AMPD_IN_GRADIENT);
      ampd_on_gradient(attachment->handle, token, &described);
    } catch (const std::exception& e) {
      ampd_on_failure(attachment->handle, "gradient hook", e.what());
    } catch (...) {
      ampd_on_failure(attachment->handle, "gradient hook", "an unknown C++ exception");
    }
    ampdoctor::release_copies();
  });
}

void report_end(const Observer& observer, const at::RecordFunction& fn) {
  Described described;
  c10::SmallVector<at::Tensor, 4> outputs;
  for (const auto& output : const_cast<at::RecordFunction&>(fn).outputs()) {
    each_tensor(output, [&](const at::Tensor& t) {
      ampd_tensor out;
      if (!describe(t, &out)) return;
      described.tensors.push_back(out);
      outputs.push_back(t);
      if (out.storage != 0) observer->remember(t);
    });
  }
  c10::SmallVector<uint64_t, 8> tokens(described.tensors.size(), 0);
  ampd_op op{fn.name(), AMPD_OPERATOR, at::GradMode::is_enabled(), static_cast<int64_t>(at::sequence_number::peek()),
             described.tensors.data(), described.tensors.size(), nullptr, 0};
  fail_if_planted(AMPD_IN_END);
  ampd_on_end(observer->attachment->handle, &op, tokens.data());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] != 0) add_hook(observer, outputs[i], tokens[i]);
  }
}

void on_end(const at::RecordFunction& fn, at::ObserverContext* raw) {
  auto* context = static_cast<Context*>(raw);
  if (context == nullptr || !context->observer) return;
  const Stopwatch stopwatch(*context->observer->attachment);
  Thread& t = thread();
  if (context->evaluates) {
    t.backward--;
    return;
  }
  if (context->reported && context->observer->active.load(std::memory_order_relaxed)) {
    try {
      report_end(context->observer, fn);
    } catch (...) {
      report_failure(context->observer, "operator end");
    }
    ampdoctor::release_copies();
  }
  if (context->counts) t.operators--;
  if (context->hides_nested) at::enableRecordFunction(true);
}

void watch_thread(Thread& t) {
  if (t.callback == at::INVALID_CALLBACK_HANDLE) {
    t.callback = at::addThreadLocalCallback(
        at::RecordFunctionCallback(on_start, on_end)
            .needsInputs(true)
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  } else if (!t.enabled) {
    at::reenableCallback(t.callback);
  }
  t.enabled = true;
}


}  // namespace

// What the other side holds; the thread observed holds the watch too, and either may go first.
struct ampd_observer {
  Observer watch;
};

extern "C" {

ampd_observer* ampd_observer_install(void* attachment) {
  try {
    auto watch = std::make_shared<Watch>();
    watch->attachment = std::make_shared<Attachment>(attachment);
    Thread& t = thread();
    auto observer = std::make_unique<ampd_observer>(ampd_observer{watch});
    watch_thread(t);
    watch->other_profiler = at::hasGlobalCallbacks();
    t.observer = watch;
    set_latest(watch);
    observers++;
    return observer.release();
  } catch (...) {
    return nullptr;
  }
}

int ampd_thread_is_observed(void) {
  const Observer& observer = thread().observer;
  return observer && observer->active;
}

int ampd_observer_is_here(const ampd_observer* observer) { return thread().observer == observer->watch; }

int ampd_observer_enable(ampd_observer* observer, int enabled) {
  Thread& t = thread();
  if (t.observer != observer->watch) return 0;
  try {
    if (enabled && !t.enabled) watch_thread(t);
    if (!enabled && t.enabled) {
      at::disableCallback(t.callback);
      t.enabled = false;
    }
    return 1;
  } catch (...) {
    report_failure(t.observer, "switching the observer");
    return 0;
  }
}

void ampd_observer_step(ampd_observer* observer) {
  observer->watch->forget();
  observer->watch->other_profiler = at::hasGlobalCallbacks();
}

void ampd_observer_remove(ampd_observer* observer) {
  observer->watch->active = false;
  observers--;
  observer->watch->forget();
  Thread& t = thread();
  if (t.observer == observer->watch) {
    try {
      if (t.callback != at::INVALID_CALLBACK_HANDLE) at::removeCallback(t.callback);
    } catch (...) {
      // Inactive, it does nothing any more; the next observer of this thread uses it again.
    }
    t.callback = at::INVALID_CALLBACK_HANDLE;
    t.enabled = false;
    t.observer.reset();
  }
  delete observer;
}

uint64_t ampd_observer_take_ns(ampd_observer* observer) {
  return observer->watch->attachment->spent_ns.exchange(0, std::memory_order_relaxed);
}

const char* ampd_framework_version(void) { return TORCH_VERSION; }

void ampd_plant_exception(int callback) { planted = callback; }
}

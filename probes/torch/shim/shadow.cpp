// A mode of the dispatcher in which operators see stand-ins for the tensors of the model.
//
// It stands above autograd and autocast on a dispatch key that LibTorch keeps for modes and that nothing else uses. Outside of a shadow
// the key is in no thread's set, and an operator's way is the same as if this file were not here.
#include "shadow.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "guard.h"

using ampdoctor::guarded;

namespace {

constexpr auto KEY = c10::DispatchKey::TESTING_ONLY_GenericMode;

struct Shadow {
  // The originals live as long as the shadow: the caller holds them.
  std::unordered_map<const c10::TensorImpl*, at::Tensor> stand_ins;
  std::unordered_set<const c10::StorageImpl*> untouchable;
  bool widen = false;
  uint64_t reads = 0;
};

std::unique_ptr<Shadow>& current() {
  static thread_local std::unique_ptr<Shadow> shadow;
  return shadow;
}

const at::Tensor& as_tensor(const void* tensor) {
  return *static_cast<const at::Tensor*>(tensor);
}

const c10::StorageImpl* storage_of(const at::Tensor& t) {
  return t.defined() && t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
}

bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

// One operator's arguments on their way to it.
class Arguments {
 public:
  Arguments(Shadow& shadow, const c10::FunctionSchema& schema, bool widen) : shadow_(shadow), schema_(schema), widen_(widen) {}

  void replace(c10::IValue& value, const c10::Argument& argument) {
    const auto* alias = argument.alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    if (value.isTensor()) {
      value = replaced(value.toTensor(), written);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(replaced(t, written));
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
        list.push_back(t.has_value() ? std::optional<at::Tensor>(replaced(*t, written)) : std::nullopt);
      }
      value = std::move(list);
    } else if (widen_ && value.isInt() && is_dtype(argument.real_type()) && is_half(static_cast<at::ScalarType>(value.toInt()))) {
      value = static_cast<int64_t>(at::kFloat);
    }
  }

 private:
  static bool is_dtype(const c10::TypePtr& type) {
    if (type->kind() == c10::TypeKind::OptionalType) return is_dtype(type->expectRef<c10::OptionalType>().getElementType());
    return type->kind() == c10::TypeKind::ScalarTypeType;
  }

  at::Tensor replaced(const at::Tensor& tensor, bool written) {
    if (!tensor.defined()) return tensor;
    const auto known = shadow_.stand_ins.find(tensor.unsafeGetTensorImpl());
    const bool is_known = known != shadow_.stand_ins.end();
    shadow_.reads += is_known ? 1 : 0;
    const at::Tensor& here = is_known ? known->second : tensor;
    const bool widens = widen_ && is_half(here.scalar_type());
    if (written && (widens || shadow_.untouchable.count(storage_of(here)) != 0)) refuse();
    return widens ? here.to(at::kFloat) : here;
  }

  [[noreturn]] void refuse() const {
    throw std::runtime_error("`" + schema_.name() +
                             "` would change a parameter, or a 16-bit tensor from outside, in place; a shadow changes nothing of the "
                             "run. Leave that operation out of the closure");
  }

  Shadow& shadow_;
  const c10::FunctionSchema& schema_;
  bool widen_;
};

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(KEY);
  if (const auto& shadow = current()) {
    const auto& schema = op.schema();
    // The random numbers of FP16 and of FP32 are not the same ones; a dropout mask is.
    Arguments arguments(*shadow, schema, shadow->widen && !op.hasTag(at::Tag::nondeterministic_seeded));
    const size_t first = stack->size() - schema.arguments().size();
    for (size_t i = 0; i < schema.arguments().size(); ++i) arguments.replace((*stack)[first + i], schema.arguments()[i]);
  }
  op.callBoxed(*stack);
}

void register_mode() {
  static const torch::Library library = [] {
    torch::Library all(torch::Library::IMPL, "_", KEY, __FILE__, __LINE__);
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
    return all;
  }();
  (void)library;
}

at::Generator generator(int32_t device) {
  const auto where = device < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device));
  return at::globalContext().defaultGenerator(where);
}

}  // namespace

extern "C" {

int ampdoctor_shadow_enter(const void* const* originals, const void* const* stand_ins, const uint8_t* writable, size_t count,
                           int32_t widen) noexcept {
  return guarded([&] {
    if (current()) throw std::runtime_error("a shadow runs on this thread already");
    register_mode();
    auto shadow = std::make_unique<Shadow>();
    shadow->widen = widen != 0;
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor& original = as_tensor(originals[i]);
      const at::Tensor& stand_in = as_tensor(stand_ins[i]);
      shadow->stand_ins.emplace(original.unsafeGetTensorImpl(), stand_in);
      shadow->untouchable.insert(storage_of(original));
      if (writable[i] == 0) shadow->untouchable.insert(storage_of(stand_in));
    }
    shadow->untouchable.erase(nullptr);
    current() = std::move(shadow);
    c10::impl::tls_set_dispatch_key_included(KEY, true);
  });
}

uint64_t ampdoctor_shadow_leave(void) noexcept {
  c10::impl::tls_set_dispatch_key_included(KEY, false);
  const uint64_t reads = current() ? current()->reads : 0;
  current().reset();
  return reads;
}

int ampdoctor_gradients(const void* loss, double scale, const void* const* inputs, size_t count, void* const* gradients) noexcept {
  return guarded([&] {
    const at::Tensor& value = as_tensor(loss);
    if (!value.defined() || !value.requires_grad()) {
      throw std::runtime_error("the closure's loss does not depend on any parameter that is trained");
    }
    if (value.numel() != 1) throw std::runtime_error("the closure's loss has " + std::to_string(value.numel()) + " elements, not one");
    std::vector<at::Tensor> leaves;
    leaves.reserve(count);
    for (size_t i = 0; i < count; ++i) leaves.push_back(as_tensor(inputs[i]));
    at::Tensor scaled = value.scalar_type() == at::kDouble ? value : value.to(at::kFloat);
    if (scale != 1.0) scaled = scaled * scale;
    const auto found = torch::autograd::grad({scaled.sum()}, leaves, {}, std::nullopt, false, true);
    for (size_t i = 0; i < count; ++i) *static_cast<at::Tensor*>(gradients[i]) = found[i];
  });
}

int ampdoctor_random_state(int32_t device, void* state) noexcept {
  return guarded([&] {
    auto source = generator(device);
    const std::lock_guard<std::mutex> lock(source.mutex());
    *static_cast<at::Tensor*>(state) = source.get_state();
  });
}

int ampdoctor_set_random_state(int32_t device, const void* state) noexcept {
  return guarded([&] {
    auto target = generator(device);
    const std::lock_guard<std::mutex> lock(target.mutex());
    target.set_state(as_tensor(state));
  });
}
}

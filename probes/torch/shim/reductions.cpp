#include "reductions.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "describe.h"
#include "guard.h"
#include "rounding.h"
#include "statistics.h"

using ampdoctor::Unseen;

namespace {

// Numbers of one piece of memory; half a megabyte.
constexpr int64_t BLOCK = 1 << 16;

at::Tensor tensor_of(const void* impl) {
  auto* raw = static_cast<at::TensorImpl*>(const_cast<void*>(impl));
  return at::Tensor(c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>::reclaim_copy(raw));
}

// Operators that a graph records would run again with it, long after this step.
void refuse_while_a_graph_is_captured(const at::Device& device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (guard.isStreamCapturing(guard.getStream(device))) {
    throw std::runtime_error("a graph of the device's operators is being captured, and what is run from it is not observed");
  }
}

// Where the numbers of one device are collected.
struct Numbers {
  struct Block {
    at::Tensor memory;
    int64_t used = 0;
    // Where they stand among the fetched ones.
    int64_t fetched_at = 0;
  };
  at::Device device;
  std::vector<Block> blocks;
  std::vector<double> fetched;

  explicit Numbers(at::Device d) : device(d) {}

  // Room for `count` numbers in one piece: the block and where it begins.
  std::pair<size_t, int64_t> reserve(int64_t count) {
    size_t at = 0;
    while (at < blocks.size() && blocks[at].memory.numel() - blocks[at].used < count) ++at;
    if (at == blocks.size()) {
      blocks.push_back({at::empty({std::max(count, BLOCK)}, at::TensorOptions(device).dtype(at::kDouble))});
    }
    Block& block = blocks[at];
    const int64_t begin = block.used;
    block.used += count;
    return {at, begin};
  }

  void fetch() {
    // Rows may have been written from several streams and threads.
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    std::vector<at::Tensor> used;
    int64_t total = 0;
    for (Block& block : blocks) {
      block.fetched_at = total;
      total += block.used;
      if (block.used > 0) used.push_back(block.memory.slice(0, 0, block.used));
    }
    if (total == 0) return;
    const at::Tensor all = used.size() == 1 ? used[0] : at::cat(used);
    const at::Tensor host = all.to(at::kCPU).contiguous();
    const double* data = host.const_data_ptr<double>();
    fetched.assign(data, data + total);
  }

  void clear() {
    // What an unusual step needed is given back; the first block serves the usual ones.
    if (blocks.size() > 1) blocks.resize(1);
    for (Block& block : blocks) block.used = 0;
    fetched.clear();
  }
};

struct Ticket {
  Numbers* numbers;
  size_t block;
  int64_t begin;
  int64_t count;
};

}  // namespace

struct ampd_reductions {
  std::vector<std::unique_ptr<Numbers>> devices;
  std::vector<Ticket> tickets;

  Numbers& of(const at::Device& device) {
    for (auto& numbers : devices) {
      if (numbers->device == device) return *numbers;
    }
    devices.push_back(std::make_unique<Numbers>(device));
    return *devices.back();
  }

  // Room for `count` numbers where `tensor` lives, filled by `write`, under a ticket.
  template <class Write>
  int64_t add(const at::Tensor& tensor, int64_t count, Write&& write) {
    refuse_while_a_graph_is_captured(tensor.device());
    Numbers& numbers = of(tensor.device());
    const auto [block, begin] = numbers.reserve(count);
    if (count > 0) write(numbers.blocks[block].memory.slice(0, begin, begin + count));
    tickets.push_back({&numbers, block, begin, count});
    return static_cast<int64_t>(tickets.size()) - 1;
  }

  int64_t add_statistics(const at::Tensor& tensor, ampd_statistics_form* form) {
    uint64_t multiplicity = 1;
    const at::Tensor elements = ampdoctor::elements_of(tensor, &multiplicity);
    *form = ampdoctor::form_of(tensor.scalar_type());
    form->elements = static_cast<uint64_t>(elements.numel());
    form->multiplicity = multiplicity;
    const int64_t width = AMPD_STATISTICS + form->exponents + 3;
    const int64_t rows = (elements.numel() + AMPD_CHUNK - 1) / AMPD_CHUNK;
    return add(tensor, rows * width, [&](const at::Tensor& all) {
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t begin = row * AMPD_CHUNK, end = std::min<int64_t>(begin + AMPD_CHUNK, elements.numel());
        ampdoctor::write_statistics(elements.slice(0, begin, end), all.slice(0, row * width, (row + 1) * width));
      }
    });
  }
};

namespace {

// A ticket from `body`, or -1 where it threw.
template <class Body>
int64_t ticket(Body&& body) {
  int64_t result = -1;
  ampdoctor::guarded([&] {
    const Unseen unseen;
    result = body();
  });
  return result;
}

template <class Body>
void* owned(Body&& body) {
  void* result = nullptr;
  ampdoctor::guarded([&] {
    const Unseen unseen;
    result = new at::Tensor(body());
  });
  return result;
}

}  // namespace

extern "C" {

ampd_reductions* ampd_reductions_new(void) {
  ampd_reductions* result = nullptr;
  ampdoctor::guarded([&] { result = new ampd_reductions(); });
  return result;
}

void ampd_reductions_delete(ampd_reductions* reductions) {
  ampdoctor::guarded([&] { delete reductions; });
}

int64_t ampd_reduce_statistics(ampd_reductions* reductions, const void* tensor, ampd_statistics_form* form) {
  return ticket([&] { return reductions->add_statistics(tensor_of(tensor), form); });
}

int64_t ampd_reduce_difference(ampd_reductions* reductions, const void* now, const void* before, ampd_statistics_form* form) {
  return ticket([&] {
    const auto wide = [](const at::Tensor& t) { return t.scalar_type() == at::kDouble ? t : t.to(at::kFloat); };
    return reductions->add_statistics(wide(tensor_of(now)) - wide(tensor_of(before)), form);
  });
}

int64_t ampd_reduce_number(ampd_reductions* reductions, const void* tensor) {
  return ticket([&] {
    const at::Tensor t = tensor_of(tensor);
    if (t.numel() != 1) throw std::invalid_argument("not one number, but another count of them");
    return reductions->add(t, 1, [&](const at::Tensor& row) { row.copy_(t.reshape({1})); });
  });
}

int64_t ampd_reduce_integers(ampd_reductions* reductions, const void* tensor) {
  return ticket([&] {
    const at::Tensor t = tensor_of(tensor);
    return reductions->add(t, 3, [&](const at::Tensor& row) { ampdoctor::write_integers(t, row); });
  });
}

int64_t ampd_reduce_neighbours(ampd_reductions* reductions, const void* tensor, double reach) {
  return ticket([&] {
    const at::Tensor t = tensor_of(tensor);
    return reductions->add(t, 3, [&](const at::Tensor& row) { ampdoctor::write_neighbours(t, reach, row); });
  });
}

int64_t ampd_reduce_unlike(ampd_reductions* reductions, const void* copy, const void* master) {
  return ticket([&] {
    const at::Tensor c = tensor_of(copy), m = tensor_of(master);
    return reductions->add(c, 1, [&](const at::Tensor& row) { ampdoctor::write_unlike(c, m, row); });
  });
}

int64_t ampd_reduce_fidelity(ampd_reductions* reductions, const void* before, const void* after, const void* intended) {
  return ticket([&] {
    const at::Tensor b = tensor_of(before), a = tensor_of(after), i = tensor_of(intended);
    return reductions->add(a, 6, [&](const at::Tensor& row) { ampdoctor::write_fidelity(b, a, i, row); });
  });
}

int64_t ampd_reduce_fidelity_in(ampd_reductions* reductions, const void* before, const void* after, int32_t dtype) {
  return ticket([&] {
    const at::Tensor b = tensor_of(before), a = tensor_of(after);
    const at::ScalarType weights = dtype == AMPD_BF16 ? at::kBFloat16 : at::kHalf;
    return reductions->add(a, 5, [&](const at::Tensor& row) { ampdoctor::write_fidelity_in(b, a, weights, row); });
  });
}

int ampd_intend(void* sum, const void* tensor, int intention, const void* a, const void* b, double factor) {
  return ampdoctor::guarded([&] {
    const Unseen unseen;
    const at::Tensor t = tensor_of(tensor);
    const at::Tensor first = a ? tensor_of(a) : at::Tensor(), second = b ? tensor_of(b) : at::Tensor();
    ampdoctor::add_intention(*static_cast<at::Tensor*>(sum), t, static_cast<ampd_intention>(intention), &first, &second, factor);
  });
}

void* ampd_copy_tensor(const void* tensor) {
  return owned([&] { return tensor_of(tensor).clone(); });
}

void* ampd_zeros_like(const void* tensor) {
  return owned([&] { return at::zeros_like(tensor_of(tensor), at::kFloat); });
}

void* ampd_hold_tensor(const void* tensor) {
  return owned([&] { return tensor_of(tensor); });
}

const void* ampd_impl(const void* owned) { return static_cast<const at::Tensor*>(owned)->unsafeGetTensorImpl(); }

void ampd_drop_tensor(void* owned) {
  ampdoctor::guarded([&] { delete static_cast<at::Tensor*>(owned); });
}

int ampd_reductions_fetch(ampd_reductions* reductions) {
  return ampdoctor::guarded([&] {
    const Unseen unseen;
    for (auto& numbers : reductions->devices) numbers->fetch();
  });
}

const double* ampd_reductions_numbers(const ampd_reductions* reductions, int64_t ticket, size_t* count) {
  if (ticket < 0 || static_cast<size_t>(ticket) >= reductions->tickets.size()) return nullptr;
  const Ticket& t = reductions->tickets[static_cast<size_t>(ticket)];
  const int64_t begin = t.numbers->blocks[t.block].fetched_at + t.begin;
  if (begin + t.count > static_cast<int64_t>(t.numbers->fetched.size())) return nullptr;
  *count = static_cast<size_t>(t.count);
  return t.numbers->fetched.data() + begin;
}

size_t ampd_reductions_count(const ampd_reductions* reductions) { return reductions->tickets.size(); }

void ampd_reductions_clear(ampd_reductions* reductions) {
  reductions->tickets.clear();
  for (auto& numbers : reductions->devices) numbers->clear();
}

void ampd_treat_host_as_device(int on) { ampdoctor::treat_host_as_device(on != 0); }

void ampd_count_without_atomics(int on) { ampdoctor::set_count_without_atomics(on != 0); }
}

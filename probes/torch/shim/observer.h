// The border between LibTorch and the observer: plain C, so that another front end can use the same observer.
//
// The ampd_on_* functions are implemented on the other side and never throw. Everything else here catches all C++ exceptions.
#pragma once
#include <stddef.h>
#include <stdint.h>

extern "C" {

// A tensor as the observer sees it. Sizes and strides are borrowed and valid for the call only.
struct ampd_tensor {
  const void* data;        // first element in host memory; null when there is none, or when it cannot be read
  const void* impl;        // the TensorImpl, for reductions.h
  const int64_t* sizes;    // in elements
  const int64_t* strides;  // in elements
  int32_t rank;
  int32_t dtype;           // enum ampd_dtype
  uint8_t readable;        // strided, host memory
  uint8_t reducible;       // strided, of a dtype that is known, in memory that only its device reads: see reductions.h
  uint8_t tracked;         // has a grad_fn: backward can reach it
  uint8_t trainable;       // requires grad
  uint32_t version;        // autograd's version counter; 0 where there is none
  uintptr_t storage;       // identity of the storage; 0 where there is none
  size_t offset;           // bytes from the start of the storage to the first element
};

enum ampd_dtype { AMPD_F16 = 0, AMPD_BF16 = 1, AMPD_F32 = 2, AMPD_F64 = 3, AMPD_OTHER = 4, AMPD_I64 = 5, AMPD_I32 = 6 };

enum ampd_op_kind {
  AMPD_OPERATOR = 0,       // a top-level operator outside backward
  AMPD_BACKWARD_NODE = 1,  // a node of the autograd graph; the tensors are its incoming gradients
};

struct ampd_op {
  const char* name;        // "aten::linear", "ToCopyBackward0"
  int32_t kind;            // enum ampd_op_kind
  uint8_t grad_mode;       // whether autograd records
  int64_t sequence;        // forward: the next autograd sequence number; backward: the number of the node
  const ampd_tensor* tensors;
  size_t count;
  const double* scalars;   // the first numbers among the arguments, in order
  size_t scalar_count;
};

enum ampd_wanted {
  AMPD_WANTS_END = 1,       // its end is to be reported too
  AMPD_WANTS_REMEMBER = 2,  // the addresses of the leaves among its arguments must not be used again in this step
};

// Implemented by the observer. `attachment` is what was given to ampd_observer_install.
// Returns what is wanted of the operator, enum ampd_wanted.
int ampd_on_start(void* attachment, const ampd_op* op);
// `tokens` has one slot a tensor, zero on entry; a non-zero slot asks for a gradient hook that reports with this token.
void ampd_on_end(void* attachment, const ampd_op* op, uint64_t* tokens);
void ampd_on_backward(void* attachment);
// A node of backward is a whole TorchScript graph, whose operators autograd has not recorded.
void ampd_on_compiled_graph(void* attachment);
void ampd_on_gradient(void* attachment, uint64_t token, const ampd_tensor* gradient);
// Something was thrown in a callback; `where` names it.
void ampd_on_failure(void* attachment, const char* where, const char* what);
void ampd_release_attachment(void* attachment);

struct ampd_observer;
// Observes the calling thread and, through autograd's thread-local state, the backward threads it starts. Takes over `attachment`.
ampd_observer* ampd_observer_install(void* attachment);
// Stops or resumes observing. Returns 0 when called from another thread than the one observed (it then has no effect).
int ampd_observer_enable(ampd_observer* observer, int enabled);
// Called between steps: lets go of the storages remembered in the step, and looks whether another profiler is at work.
void ampd_observer_step(ampd_observer* observer);
// Nanoseconds spent in callbacks since the last call, on both sides of the border, on all threads.
uint64_t ampd_observer_take_ns(ampd_observer* observer);
// Ends observing and frees the observer. From another thread than the one observed, what is registered there stays, inert.
void ampd_observer_remove(ampd_observer* observer);
// Whether any observer is at work on the calling thread.
int ampd_thread_is_observed(void);
// Whether the calling thread is the one this observer observes.
int ampd_observer_is_here(const ampd_observer* observer);

// `tensor` is an at::Tensor*, as torch-sys hands it out. Both return 0 when there is nothing to describe.
int ampd_describe(const void* tensor, ampd_tensor* out);
int ampd_describe_gradient(const void* tensor, ampd_tensor* out);
// Which memory the gradient of a tensor is, and at what version; 0 where there is no gradient. Nothing is copied.
int ampd_gradient_content(const void* tensor, uintptr_t* storage, uint32_t* version);
// The same as ampd_describe, of a copy in host memory where the tensor's own memory cannot be read from there: waits for the device. The copy is kept until
// ampd_release_copies.
int ampd_describe_on_host(const void* tensor, ampd_tensor* out);
uintptr_t ampd_storage(const void* tensor);
// Bytes from the start of its storage to its first element.
size_t ampd_offset(const void* tensor);
uintptr_t ampd_identity(const void* tensor);
uint32_t ampd_version(const void* tensor);
void ampd_release_copies(void);
const char* ampd_framework_version(void);
// For tests: the callback with this number (enum ampd_callback) throws from now on; 0 none.
void ampd_plant_exception(int callback);
enum ampd_callback { AMPD_IN_START = 1, AMPD_IN_END = 2, AMPD_IN_GRADIENT = 3 };
}

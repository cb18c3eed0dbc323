#include "guard.h"

namespace ampdoctor {

std::string& last_error() noexcept {
  static thread_local std::string message;
  return message;
}

void remember_error(const char* what) noexcept {
  try {
    last_error() = what;
  } catch (...) {
    last_error().clear();  // no memory for the message: the code 1 still tells of the failure
  }
}

}  // namespace ampdoctor

extern "C" const char* ampdoctor_last_error() noexcept {
  return ampdoctor::last_error().c_str();
}

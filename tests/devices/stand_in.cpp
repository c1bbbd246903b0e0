// A device that torch takes for an accelerator, in the memory of this process: two of them, `stand:0` and `stand:1`.
//
// Every kernel is that of the CPU, so that results can be compared with the CPU's to the last bits. All else is as on
// an accelerator, or stricter: between kernels the memory cannot be read at all, new memory is filled with NaN, random
// numbers come from generators of its own, events are stamped by a clock of its own that only kernels move, and a
// copy to the CPU that does not block is done when the device is next waited for. It can be made full, lost, or to
// lack float64, events or operators.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <set>

namespace {

using at::Tensor;
using c10::IntArrayRef;
using c10::IValue;

constexpr auto kStand = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;

// What tests make it do; -1 is never.
struct Settings {
  int64_t bytes = -1;          // the memory of each device
  int64_t kernels_left = -1;   // until the device is lost
  bool has_float64 = true;
  bool has_events = true;
  std::set<std::string> missing;  // operators, as aten::std
} settings;

std::recursive_mutex mutex;  // of everything below
thread_local c10::DeviceIndex current = 0;
double clock_ms[kDevices];
int64_t bytes_used[kDevices];

// ---- Memory ----

struct Block {
  size_t size;
  c10::DeviceIndex device;
  int n_open = 0;
};
std::map<const void*, Block> blocks;
std::set<const void*> pinned;

size_t pages(size_t n) { return (n + 4095) / 4096 * 4096; }

void release(void* p) {
  std::lock_guard lock(mutex);
  const auto block = blocks.at(p);
  bytes_used[block.device] -= block.size;
  munmap(p, pages(block.size));
  blocks.erase(p);
}

// Lets the CPU at a block for as long as a kernel runs.
class Opened {
  const void* p_;
  void turn(int by) {
    std::lock_guard lock(mutex);
    if (!blocks.count(p_)) return;
    auto& block = blocks.at(p_);
    block.n_open += by;
    if (block.n_open == (by > 0))
      mprotect(const_cast<void*>(p_), pages(block.size), by > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
  }

 public:
  explicit Opened(const void* p) : p_(p) { turn(+1); }
  explicit Opened(const Tensor& x) : Opened(x.storage().data()) {}
  Opened(Opened&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
  ~Opened() { turn(-1); }
};

// Begins each kernel.
void launch(const std::string& name, c10::DeviceIndex device) {
  std::lock_guard lock(mutex);
  clock_ms[device] += 1;
  if (settings.kernels_left > 0) --settings.kernels_left;
  if (settings.kernels_left == 0)
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 719, "stand error: the device is lost");
  TORCH_CHECK_NOT_IMPLEMENTED(
      !settings.missing.count(name), "The operator '", name, "' is not currently implemented for the stand device.");
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    const c10::Device device(kStand, current);
    if (!n) return {nullptr, nullptr, [](void*) {}, device};
    std::lock_guard lock(mutex);
    TORCH_CHECK_WITH(
        OutOfMemoryError, settings.bytes < 0 || bytes_used[current] + static_cast<int64_t>(n) <= settings.bytes,
        "stand out of memory. Tried to allocate ", n, " bytes.");
    void* p = mmap(nullptr, pages(n), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(p != MAP_FAILED, "mmap failed");
    std::memset(p, 0xFF, n);  // NaN
    mprotect(p, pages(n), PROT_NONE);
    blocks[p] = {n, current};
    bytes_used[current] += n;
    return {p, p, &release, device};
  }
  void copy_data(void* to, const void* from, size_t n) const override {
    Opened to_open(to), from_open(from);
    std::memcpy(to, from, n);
  }
} memory;
REGISTER_ALLOCATOR(kStand, &memory);

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* p = std::malloc(n ? n : 1);
    std::lock_guard lock(mutex);
    pinned.insert(p);
    return {p, p, &release_pinned, c10::Device(c10::kCPU)};
  }
  static void release_pinned(void* p) {
    std::lock_guard lock(mutex);
    pinned.erase(p);
    std::free(p);
  }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
} pinned_memory;

// ---- Copies to the CPU that do not block ----

std::vector<std::pair<Tensor, Tensor>> underway;  // where to, and what

void wait() {
  std::lock_guard lock(mutex);
  for (auto& [to, values] : std::exchange(underway, {})) to.copy_(values);
}

// ---- Streams and events ----

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Device = c10::Device;
  using Stream = c10::Stream;
  c10::DeviceType type() const override { return kStand; }
  Device getDevice() const override { return {kStand, current}; }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "stand error: invalid device ordinal ", int(device.index()));
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override { current = indexed(device).index(); }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  Stream getStream(Device device) const override { return Stream(Stream::DEFAULT, indexed(device)); }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  bool queryStream(const Stream&) const override { return underway.empty(); }
  void synchronizeStream(const Stream&) const override { wait(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { wait(); }
  void record(void** event, const Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    TORCH_CHECK(settings.has_events, "Backend doesn't support events.");
    if (!*event) *event = new double;
    *static_cast<double*>(*event) = clock_ms[indexed(stream.device()).index()];
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return underway.empty(); }
  void synchronizeEvent(void*) const override { wait(); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<double*>(event); }
  double elapsedTime(void* begun, void* ended, const c10::DeviceIndex) const override {
    return *static_cast<double*>(ended) - *static_cast<double*>(begun);
  }
  static Device indexed(Device device) { return device.has_index() ? device : Device(kStand, current); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---- Random numbers ----

struct RandomGenerator final : c10::GeneratorImpl {
  at::Generator inner;
  explicit RandomGenerator(c10::DeviceIndex device, at::Generator of = at::detail::createCPUGenerator())
      : GeneratorImpl({kStand, device}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), inner(std::move(of)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "no offset"); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  c10::GeneratorImpl* clone_impl() const override { return new RandomGenerator(device().index(), inner.clone()); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return std::exchange(current, device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* p) const override {
    std::lock_guard lock(mutex);
    return pinned.count(p);
  }
  c10::Device getDeviceFromPtr(void* p) const override { return {kStand, blocks.at(p).device}; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    static const at::Generator all[kDevices] = {getNewGenerator(0), getNewGenerator(1)};
    return all[device < 0 ? current : device];
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<RandomGenerator>(device < 0 ? current : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t n) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    c10::DeviceGuard guard(impl->device());
    auto data = memory.allocate(n);
    if (impl->nbytes() && n) memory.copy_data(data.get(), impl->data(), std::min(n, impl->nbytes()));
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(n);
  }
} hooks;

// ---- Kernels ----

bool is_ours(const Tensor& x) { return x.defined() && x.device().type() == kStand; }

void check_dtype(at::ScalarType dtype) {
  TORCH_CHECK_TYPE(
      settings.has_float64 || (dtype != at::kDouble && dtype != at::kComplexDouble),
      "Cannot convert a stand tensor to float64: the stand device doesn't support it. Please use float32 instead.");
}

// Returns a tensor of the CPU over the same memory, which has to be open.
Tensor on_cpu(const Tensor& x) {
  if (!is_ours(x)) return x;
  auto options = x.options().device(at::kCPU).requires_grad(false);
  auto same = x.storage().nbytes() ? at::from_blob(const_cast<void*>(x.const_data_ptr()), x.sizes(), x.strides(), options)
                                   : at::empty_strided(x.sizes(), x.strides(), options);
  return x.is_conj() ? same.conj() : x.is_neg() ? same._neg_view() : same;
}

Tensor empty_strided(
    IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  check_dtype(c10::dtype_or_default(dtype));
  c10::OptionalDeviceGuard guard(device);
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &memory, keys, c10::dtype_or_default(dtype));
}

Tensor empty(
    IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  check_dtype(c10::dtype_or_default(dtype));
  c10::OptionalDeviceGuard guard(device);
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &memory, keys, c10::dtype_or_default(dtype), format);
}

// Returns a copy of a result of the CPU.
Tensor on_stand(const Tensor& x, c10::Device device) {
  if (!x.defined()) return x;
  TORCH_CHECK_NOT_IMPLEMENTED(x.layout() == at::kStrided, "the stand device has no layout but strided");
  auto made = empty_strided(x.sizes(), x.strides(), x.scalar_type(), {}, device, {});
  Opened open(made);
  on_cpu(made).copy_(x);
  return made;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool is_not_blocking) {
  launch("aten::_copy_from", (is_ours(from) ? from : to).device().index());
  Opened from_open(from), to_open(to);
  if (is_ours(from) && !is_ours(to)) {
    if (is_not_blocking) {
      underway.emplace_back(to, on_cpu(from).clone());
      if (to.is_contiguous() && to.numel()) std::memset(to.data_ptr(), 0xFF, to.nbytes());
      return to;
    }
    wait();
  }
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar item(const Tensor& x) {
  launch("aten::_local_scalar_dense", x.device().index());
  wait();
  Opened open(x);
  return on_cpu(x).item();
}

const Tensor& resize_(const Tensor& x, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const size_t n = (c10::multiply_integers(sizes) + x.storage_offset()) * x.itemsize();
  if (x.storage().nbytes() < n) hooks.resizePrivateUse1Bytes(x.storage(), n);
  x.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  if (format) x.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return x;
}

Tensor& set_storage_at(Tensor& x, at::Storage storage, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  auto* impl = x.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  stride.empty() && !size.empty() ? impl->set_sizes_contiguous(size) : impl->set_sizes_and_strides(size, stride);
  return x;
}

Tensor& set_storage(Tensor& x, at::Storage storage) {
  return set_storage_at(x, storage, 0, {static_cast<int64_t>(storage.nbytes() / x.itemsize())}, {});
}

Tensor as_strided(const Tensor& x, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(x, size, stride, offset);
}

int64_t math_attention(
    const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>, bool) {
  return 0;  // made of other operators
}

// Runs an operator of the CPU on the memory of the device. What the kernel writes is there, declared or not.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t n = schema.arguments().size(), first = stack->size() - n;
  const std::vector<IValue> given(stack->begin() + first, stack->end());
  std::optional<c10::Device> device;
  std::vector<Opened> open;
  std::vector<std::pair<Tensor, Tensor>> sized;  // tensors that a kernel may give another size, and what it writes
  bool has_cpu = false;

  auto look = [&](const Tensor& x) {
    if (is_ours(x)) {
      TORCH_CHECK(
          !device || *device == x.device(),
          "Expected all tensors to be on the same device, but found at least two devices, ", *device, " and ", x.device(), "!");
      device = x.device();
    }
    has_cpu |= x.defined() && x.device().is_cpu() && x.dim() > 0;
  };
  auto taken = [&](const Tensor& x, bool is_out) {
    if (!is_ours(x)) return x;
    open.emplace_back(x);
    auto same = is_out ? at::empty({0}, x.options().device(at::kCPU)) : on_cpu(x);
    if (is_out || !x.storage().nbytes()) sized.emplace_back(x, same);
    return same;
  };
  const bool may_mix = schema.name().rfind("aten::index", 0) == 0 || schema.name() == "aten::_index_put_impl_";
  for (const auto& value : given) {
    if (value.isTensor()) look(value.toTensor());
    if (value.isTensorList()) for (const Tensor& x : value.toTensorVector()) look(x);
    if (value.isDevice() && value.toDevice().type() == kStand) device = Guard::indexed(value.toDevice());
  }
  TORCH_CHECK(
      !device || !has_cpu || may_mix,
      "Expected all tensors to be on the same device, but found at least two devices, ", *device, " and cpu! (", schema.name(), ")");
  const c10::Device here = device.value_or(c10::Device(kStand, current));
  launch(schema.name(), here.index());

  for (size_t i = 0; i < n; ++i) {
    auto& value = (*stack)[first + i];
    const bool is_out = schema.arguments()[i].is_out();
    if (value.isTensor()) {
      value = taken(value.toTensor(), is_out);
    } else if (value.isTensorList()) {
      c10::List<Tensor> all;
      for (const Tensor& x : value.toTensorVector()) all.push_back(taken(x, is_out));
      value = all;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> all;
      for (const std::optional<Tensor>& x : value.toOptionalTensorVector())
        all.push_back(x ? std::optional<Tensor>(taken(*x, false)) : x);
      value = all;
    } else if (value.isDevice()) {
      value = c10::Device(c10::kCPU);
    } else if (schema.arguments()[i].type()->str().find("Generator") == 0) {
      const auto own = value.isNone() ? hooks.getDefaultGenerator(here.index()) : value.toGenerator();
      TORCH_CHECK(own.device().type() == kStand, "Expected a 'stand' device type for generator but found '", own.device(), "'");
      value = static_cast<RandomGenerator*>(own.unsafeGetGeneratorImpl())->inner;
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (auto& [x, same] : sized) {
    if (x.sizes() != same.sizes()) resize_(x, c10::fromIntArrayRefSlow(same.sizes()), {});
    Opened resized(x);
    on_cpu(x).copy_(same);
  }

  const size_t results = stack->size() - schema.returns().size();
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    auto& value = (*stack)[results + i];
    const auto* alias = schema.returns()[i].alias_info();
    if (alias && !alias->isWrite()) TORCH_CHECK_NOT_IMPLEMENTED(false, schema.name(), " is a view, which needs its own kernel");
    if (alias) {
      for (size_t j = 0; j < n; ++j)
        if (schema.arguments()[j].alias_info() && *schema.arguments()[j].alias_info() == *alias) value = given[j];
    } else if (value.isTensor()) {
      value = on_stand(value.toTensor(), here);
    } else if (value.isTensorList()) {
      c10::List<Tensor> all;
      for (const Tensor& x : value.toTensorVector()) all.push_back(on_stand(x, here));
      value = all;
    } else {
      wait();  // a number came back
    }
  }
}

Tensor convolution(
    const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool is_transposed, IntArrayRef output_padding, int64_t groups) {
  TORCH_CHECK(is_ours(x) && is_ours(weight), "Input type and weight type should be the same");
  launch("aten::convolution_overrideable", x.device().index());
  Opened x_open(x), weight_open(weight);
  const bool has_bias = bias && bias->defined();
  Opened bias_open(has_bias ? *bias : x);
  const auto b = has_bias ? std::optional<Tensor>(on_cpu(*bias)) : std::nullopt;
  const auto y = at::convolution(
      on_cpu(x), on_cpu(weight), b, stride, padding, dilation, is_transposed, output_padding, groups);
  return on_stand(y, x.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& x, const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool is_transposed, IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  launch("aten::convolution_backward_overrideable", x.device().index());
  Opened gradient_open(gradient), x_open(x), weight_open(weight);
  const int64_t n_bias = is_transposed ? weight.size(1) * groups : weight.size(0);
  const auto [to_x, to_weight, to_bias] = at::convolution_backward(
      on_cpu(gradient), on_cpu(x), on_cpu(weight), IntArrayRef{n_bias}, stride, padding, dilation, is_transposed,
      output_padding, groups, wanted);
  return {on_stand(to_x, x.device()), on_stand(to_weight, x.device()), on_stand(to_bias, x.device())};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", item);
  library.impl("resize_", resize_);
  library.impl("set_.source_Storage", set_storage);
  library.impl("set_.source_Storage_storage_offset", set_storage_at);
  library.impl("as_strided", as_strided);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("view_as_real", at::native::view_as_real);
  library.impl("view_as_complex", at::native::view_as_complex);
  library.impl("_fused_sdp_choice", math_attention);
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
}

}  // namespace

namespace at::autocast {
#define LOW(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FULL(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOW)
  AT_FORALL_FP32(FULL)
}
}  // namespace at::autocast

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("register_hooks", [] { at::RegisterPrivateUse1HooksInterface(&hooks); });
  module.def("default_generator", [](int device) { return hooks.getDefaultGenerator(device); });
  module.def("current_device", [] { return int(current); });
  module.def("set_device", [](int device) { Guard().setDevice(c10::Device(kStand, device)); });
  module.def("wait", wait);
  module.def("bytes_used", [](int device) { return bytes_used[device]; });
  pybind11::class_<Settings>(module, "Settings")
      .def_readwrite("bytes", &Settings::bytes)
      .def_readwrite("kernels_left", &Settings::kernels_left)
      .def_readwrite("has_float64", &Settings::has_float64)
      .def_readwrite("has_events", &Settings::has_events)
      .def_readwrite("missing", &Settings::missing);
  module.attr("N_DEVICES") = int(kDevices);
  module.attr("settings") = pybind11::cast(&settings, pybind11::return_value_policy::reference);
}

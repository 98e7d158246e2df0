// Operators of torch on the mock's device: they wait for the current stream, which is what makes
// them those of a device, and run as the CPU's on the same memory.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

#include <cstring>
#include <memory>
#include <vector>

#include "tests/support/mock_torch/driver.hpp"

namespace mock_torch {

namespace {

// Memory belongs to the stream that was current when it was made, as torch's own allocator has it:
// what is given back is used again when that stream has come so far.
struct Block {
    void* memory;
    std::size_t bytes;
    Handle stream;
};

void give_back(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    std::memset(block->memory, 0xee, block->bytes);  // what still uses it is wrong
    driver().free(block->memory);
}

void free_in_order(void* context) {
    auto* block = static_cast<Block*>(context);
    driver().launch_host(block->stream, &give_back, block);
}

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(std::size_t bytes) const override {
        const c10::Device device = c10::impl::getDeviceGuardImpl(c10::kCUDA)->getDevice();
        if (bytes == 0) return {nullptr, device};
        void* memory = driver().allocate(bytes);
        return {memory, new Block{memory, bytes, current_stream()}, &free_in_order, device};
    }
};

Allocator& allocator() {
    static auto& made = *new Allocator;
    return made;
}

const c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

void use(c10::optional<at::Device> device) {
    if (device && device->has_index()) {
        c10::impl::getDeviceGuardImpl(c10::kCUDA)->setDevice(*device);
    }
}

// Makes the device of a factory current until its end.
struct OnDevice {
    explicit OnDevice(c10::optional<at::Device> device) { use(device); }
    ~OnDevice() { use(before); }
    c10::Device before = c10::impl::getDeviceGuardImpl(c10::kCUDA)->getDevice();
};

at::ScalarType type_or_default(c10::optional<at::ScalarType> type) {
    return type ? *type : at::get_default_dtype_as_scalartype();
}

at::Tensor empty(at::IntArrayRef size, c10::optional<at::ScalarType> type,
                 c10::optional<at::Layout>, c10::optional<at::Device> device, c10::optional<bool>,
                 c10::optional<at::MemoryFormat> format) {
    const OnDevice there(device);
    return at::detail::empty_generic(size, &allocator(), kKeys, type_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         c10::optional<at::ScalarType> type, c10::optional<at::Layout>,
                         c10::optional<at::Device> device, c10::optional<bool>) {
    const OnDevice there(device);
    return at::detail::empty_strided_generic(size, stride, &allocator(), kKeys,
                                             type_or_default(type));
}

// The same memory as a tensor of the CPU; one without elements may be made larger.
at::Tensor alias_of(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_cpu()) return tensor;
    const auto options = tensor.options().device(at::kCPU);
    if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
    return at::from_blob(
        tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {}, options);
}

at::Tensor on_device(const at::Tensor& result) {
    if (!result.defined()) return result;
    const auto options = result.options().device(at::kCUDA);
    at::Tensor made = at::empty_strided(result.sizes(), result.strides(), options);
    if (result.numel() != 0) alias_of(made).copy_(result);
    return made;
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          c10::optional<at::MemoryFormat>) {
    const at::Tensor fresh = at::empty(size, self.options());
    if (fresh.nbytes() > self.storage().nbytes())
        self.unsafeGetTensorImpl()->set_storage_and_dtype(fresh.storage(), fresh.dtype());
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    return self;
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool) {
    driver().stream_wait(current_stream());
    if (self.numel() != 0) alias_of(self).copy_(alias_of(source));
    return self;
}

c10::IValue alias_value(const c10::IValue& value) {
    if (value.isTensor()) return alias_of(value.toTensor());
    if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::kCPU);
    if (value.isTensorList()) {
        c10::List<at::Tensor> aliases;
        for (const at::Tensor& tensor : value.toTensorVector()) aliases.push_back(alias_of(tensor));
        return aliases;
    }
    if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
        c10::List<c10::optional<at::Tensor>> aliases;
        for (const c10::IValue& each : value.toListRef()) {
            aliases.push_back(each.isTensor() ? c10::make_optional(alias_of(each.toTensor()))
                                              : c10::nullopt);
        }
        return aliases;
    }
    return value;
}

// What an operator gives back of what it was given to write to.
at::Tensor written(const at::Tensor& given, const at::Tensor& alias) {
    if (given.sizes() != alias.sizes()) {
        resize_(given, alias.sizes(), c10::nullopt);
        if (given.numel() != 0) alias_of(given).copy_(alias);
    }
    return given;
}

c10::IValue result_of(const c10::IValue& value) {
    if (value.isTensor()) return on_device(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> results;
    for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(on_device(tensor));
    return results;
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    driver().stream_wait(current_stream());
    const auto& arguments = op.schema().arguments();
    const auto& returns = op.schema().returns();
    const std::size_t first = stack->size() - arguments.size();
    std::vector<at::Tensor> given;
    std::vector<at::Tensor> aliases;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        c10::IValue& value = (*stack)[first + i];
        c10::IValue alias = alias_value(value);
        const auto* info = arguments[i].alias_info();
        if (info != nullptr && info->isWrite() && value.isTensor()) {
            given.push_back(value.toTensor());
            aliases.push_back(alias.toTensor());
        }
        value = std::move(alias);
    }
    op.callBoxed(stack);
    std::size_t next = 0;
    for (std::size_t i = 0; i < returns.size(); ++i) {
        c10::IValue& value = (*stack)[stack->size() - returns.size() + i];
        const auto* info = returns[i].alias_info();
        if (info != nullptr && info->isWrite() && value.isTensor() && next < given.size()) {
            value = written(given[next], aliases[next]);
            ++next;
        } else {
            value = result_of(value);
        }
    }
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
    library.impl("empty.memory_format", &empty);
    library.impl("empty_strided", &empty_strided);
    library.impl("resize_", &resize_);
    library.impl("copy_", &copy_);
    library.impl("is_pinned", [](const at::Tensor&, c10::optional<at::Device>) { return true; });
    library.impl("as_strided", &at::native::as_strided_tensorimpl);
    library.impl("view", &at::native::view);
    library.impl("_reshape_alias", &at::native::_reshape_alias);
    library.impl("unfold", &at::native::unfold);
    library.impl("view_as_real", &at::native::view_as_real);
    library.impl("view_as_complex", &at::native::view_as_complex);
}

const bool g_registered = [] {
    c10::SetAllocator(c10::kCUDA, &allocator());
    return true;
}();

}  // namespace

}  // namespace mock_torch

"""tools/simcuda: PyTorch programs that use the libraries besides the runtime (cuBLAS, cuFFT, NCCL, NVML), and names of
calls that are not simulated.

Every program runs in its own process, through tools/simcuda/run, without this project's recorder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from simcuda_runs import run_simulated

PRELUDE = """
import ctypes, os, sys, warnings
import torch
import torch.nn.functional as F
from torch import nn
warnings.simplefilter("ignore")

def random(*shape, **options):
    return torch.randn(*shape, device="cuda", **options)

def train(module, *inputs, optimizer=None, steps=2):
    '''Forward, backward, step. Every parameter gets a gradient of its own shape, on its own device.'''
    optimizer = optimizer or torch.optim.AdamW(module.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        output = module(*inputs)
        output = output[0] if isinstance(output, tuple) else output
        output.float().sum().backward()
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None and parameter.grad.device == parameter.device, name
            assert parameter.grad.shape == parameter.shape, name
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
    return output
"""


def run(
    folder: Path, source: str, *options: str, unknown: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program, which must succeed; `unknown` states whether it calls functions that are not simulated."""
    process = run_simulated(folder, source, *options, prelude=PRELUDE, **environment)
    assert ("is not simulated" in process.stderr) == unknown, process.stderr
    return process


def test_layers_train_and_attention_uses_fused_kernels(tmp_path: Path) -> None:
    """torch uses its own kernels instead of those of cuDNN."""
    process = run(
        tmp_path,
        """
        assert not torch.backends.cudnn.enabled and not torch.backends.cuda.cudnn_sdp_enabled()
        network = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=8),
            nn.ConvTranspose2d(8, 4, 2, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).cuda()
        for layout in (torch.contiguous_format, torch.channels_last):
            x = random(4, 3, 32, 32).to(memory_format=layout)
            assert train(network.to(memory_format=layout), x).shape == (4, 2)
        with torch.autocast("cuda"):
            assert train(network, x).dtype == torch.float16
        assert train(nn.Conv3d(3, 4, 3).cuda(), random(2, 3, 9, 9, 9)).shape == (2, 4, 7, 7, 7)
        assert train(nn.LSTM(8, 16, num_layers=2, batch_first=True).cuda(), random(4, 7, 8)).shape == (4, 7, 16)
        words = torch.randint(0, 100, (4, 7), device="cuda")
        assert train(nn.EmbeddingBag(100, 16).cuda(), words).shape == (4, 16)
        for options in ({"fused": True}, {"capturable": True}):
            linear = nn.Linear(8, 4).cuda()
            train(linear, random(2, 8), optimizer=torch.optim.AdamW(linear.parameters(), **options))
        x = random(2, 16, 32)
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).cuda()
        assert train(encoder, x).shape == x.shape
        encoder.eval()
        with torch.no_grad():
            assert encoder(x, src_key_padding_mask=torch.zeros(2, 16, dtype=torch.bool, device="cuda")).shape == x.shape

        from torch.nn.attention import SDPBackend, sdpa_kernel
        names = set()
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
            q, k, v = (random(2, 4, 64, 32, dtype=torch.float16, requires_grad=True) for _ in range(3))
            with sdpa_kernel(backend):
                for options in ({"is_causal": True}, {"dropout_p": 0.1}, {}):
                    y = F.scaled_dot_product_attention(q, k, v, **options)
                    names.add(y.grad_fn.name())
                    y.sum().backward()
                    assert q.grad.shape == k.grad.shape == v.grad.shape == y.shape
        print(*sorted(names))
        """,
    )

    assert "ScaledDotProductFlashAttentionBackward0" in process.stdout
    assert "ScaledDotProductEfficientAttentionBackward0" in process.stdout


@pytest.mark.slow("simcuda")
def test_cublas_and_cufft_calls_return_and_other_libraries_fail(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        x = random(8, 8)
        assert (x @ x).shape == torch.einsum("ij,kj->ik", x, x).shape == torch.addmm(x, x, x).shape == (8, 8)
        assert torch.bmm(x[None], x[None]).shape == torch.baddbmm(x[None], x[None], x[None]).shape == (1, 8, 8)
        assert (x @ x[0]).shape == torch.outer(x[0], x[0])[0].shape == (8,)
        assert torch.dot(x[0], x[1]).item() == 0.0
        z = torch.randn(8, 8, dtype=torch.cfloat, device="cuda")
        assert (z @ z.conj()).dtype == torch.cfloat and torch.vdot(z[0], z[1]).shape == ()
        small = torch.zeros(32, 32, dtype=torch.int8, device="cuda")
        assert torch._int_mm(small, small).dtype == torch.int32
        one, f8 = torch.ones((), device="cuda"), random(32, 32).to(torch.float8_e4m3fn)
        assert torch._scaled_mm(f8, f8.t(), one, one, out_dtype=torch.bfloat16).shape == (32, 32)
        linear = nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16)      # cuBLASLt, with the bias in the product
        assert F.gelu(linear(random(8, 64, dtype=torch.bfloat16)), approximate="tanh").shape == (8, 64)

        assert torch.fft.rfft(x).shape == (8, 5) and torch.fft.ifft2(torch.fft.fft2(x)).shape == (8, 8)

        torch.cuda.manual_seed_all(3)
        state = torch.cuda.get_rng_state()
        F.dropout(x)
        assert not torch.equal(torch.cuda.get_rng_state(), state)            # the generator advances, on the host
        torch.cuda.set_rng_state(state)
        assert torch.equal(torch.cuda.get_rng_state(), state)

        v = random(100)                                                      # sizes that are read from the device
        for result in (v.sort().values, v.nonzero(), v[v > 0], v.unique(), torch.special.bessel_j0(v)):
            assert result.is_cuda
        assert "device='cuda:0'" in repr(random(5000))

        for unknown, call in (
            ("cusparseCreate", lambda: torch.sparse.mm(torch.eye(5).to_sparse().cuda(), x[:5])),
            ("CUDNN_STATUS_NOT_SUPPORTED", lambda: nn.Conv2d(3, 4, 3).cuda()(random(2, 3, 9, 9))),
        ):
            torch.backends.cudnn.enabled = True                              # by a program that insists on it
            try:
                call()
            except RuntimeError as error:
                assert unknown in str(error), error
            else:
                raise SystemExit("an operation of a library that is not simulated did not fail")
        """,
        unknown=True,
    )


@pytest.mark.slow("simcuda")
def test_modules_train_on_two_devices_in_one_or_two_processes(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        import torch.distributed as dist
        import torch.multiprocessing as mp

        def work(rank, where):
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl", init_method=f"file://{where}", rank=rank, world_size=2,
                                    device_id=torch.device("cuda", rank))
            x = random(1000)
            dist.all_reduce(x)
            known = torch.arange(4.0).cuda()
            parts = [torch.empty_like(known) for _ in range(2)]
            dist.all_gather(parts, known)
            assert [part.tolist() for part in parts] == [[0, 1, 2, 3]] * 2   # both processes sent the same
            dist.broadcast(x, 0)
            dist.barrier()
            model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda())
            train(model, random(4, 8))
            torch.cuda.synchronize()
            dist.destroy_process_group()

        if __name__ == "__main__":
            first, second = nn.Linear(8, 8).to("cuda:0"), nn.Linear(8, 8).to("cuda:1")
            second(first(random(2, 8)).to("cuda:1")).sum().backward()
            assert first.weight.grad.device.index == 0 and second.weight.grad.device.index == 1
            copies = torch.nn.parallel.comm.broadcast(torch.ones(1000, device="cuda"), [0, 1])
            assert [copy.device.index for copy in copies] == [0, 1]
            assert train(nn.DataParallel(nn.Linear(8, 8).cuda(), [0, 1]), random(4, 8)).shape == (4, 8)
            mp.spawn(work, (os.path.abspath("store"),), nprocs=2)
        """,
        "--devices=2",
    )


@pytest.mark.slow("simcuda")
def test_nvml_reports_memory_and_processes_of_devices(tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    extra.write_text("")
    run(
        tmp_path,
        """
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        class Memory(ctypes.Structure):
            _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]
        class Process(ctypes.Structure):
            _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instances", ctypes.c_uint * 2)]
        def device(index):
            handle = ctypes.c_void_p()
            assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
            return handle
        def memory(handle):
            found = Memory()
            assert nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(found)) == 0
            assert found.total == found.free + found.used
            return found
        def processes(handle):
            count = ctypes.c_uint(0)
            error = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None)
            if count.value == 0:
                return {}
            assert error == 7                      # no room
            entries = (Process * count.value)()
            assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), entries) == 0
            return {entry.pid: entry.used for entry in entries}
        MIB, GIB = 2**20, 2**30
        count, handle = ctypes.c_uint(), ctypes.c_void_p()
        assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 1           # not initialised
        assert nvml.nvmlInit_v2() == 0
        assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 and count.value == 3
        assert nvml.nvmlDeviceGetHandleByIndex_v2(3, ctypes.byref(handle)) == 2
        nvml.nvmlErrorString.restype = ctypes.c_char_p
        assert b"not large enough" in nvml.nvmlErrorString(7)

        # Other processes are listed before this one is.
        assert [memory(device(i)).used for i in range(3)] == [3 * GIB, 1 * GIB, 1 * GIB]
        assert processes(device(0)) == {4711: 1 * GIB, 4712: 2 * GIB} and processes(device(1)) == {4711: 1 * GIB}

        # The runtime's first device is NVML's second: CUDA_VISIBLE_DEVICES.
        assert torch.cuda.device_count() == 1
        x = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        own = 600 * MIB
        free, total = torch.cuda.mem_get_info()
        assert total == 80 * GIB and total - free == 1 * GIB + own
        assert memory(device(1)).used == 1 * GIB + own and memory(device(0)).used == 3 * GIB
        assert processes(device(1)) == {4711: 1 * GIB, os.getpid(): own}
        with open("extra", "w") as file:
            file.write("5GiB@1 100MiB")
        assert memory(device(1)).used == 6 * GIB + own + 100 * MIB and memory(device(2)).used == 1 * GIB + 100 * MIB
        with open("extra", "w") as file:
            file.write("79GiB")
        assert memory(device(1)).free == 0 == torch.cuda.mem_get_info()[0]

        # The same device, found by the runtime's identity of it.
        uuid = "GPU-" + str(torch.cuda.get_device_properties(0).uuid)
        assert nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == 0
        assert handle.value == device(1).value
        bus = ctypes.create_string_buffer(32)
        assert torch.cuda.cudart() and ctypes.CDLL(None).cudaDeviceGetPCIBusId(bus, 32, 0) == 0
        assert nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)) == 0
        assert handle.value == device(1).value
        assert nvml.nvmlDeviceGetHandleByPciBusId_v2(b"0000:77:00.0", ctypes.byref(handle)) == 6
        assert nvml.nvmlShutdown() == 0
        """,
        "--devices=3",
        CUDA_VISIBLE_DEVICES="1",
        SIMCUDA_OTHER_PROCESSES="4711:1GiB,4712:2GiB@0",
        SIMCUDA_NVML_EXTRA=str(extra),
    )


@pytest.mark.slow("simcuda")
@pytest.mark.parametrize("value", ["4711", "x:1GiB", "4711:1GiB@x"])
def test_invalid_other_processes_fail(tmp_path: Path, value: str) -> None:
    program = "import ctypes; n = ctypes.c_size_t(); ctypes.CDLL(None).cudaMemGetInfo(ctypes.byref(n), ctypes.byref(n))"
    process = run_simulated(tmp_path, program, check=False, SIMCUDA_OTHER_PROCESSES=value)
    assert process.returncode == 2 and "SIMCUDA_OTHER_PROCESSES" in process.stderr

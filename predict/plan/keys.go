package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// only refuses keys that a framework does not know, since its own parser does: every key that one of its releases had is known.
func only(framework string, m map[string]any, known []string) error {
	if err := misspelt(m, known); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(known, k) {
			return fmt.Errorf("unknown key %q, which %s refuses", k, framework)
		}
	}
	return nil
}

// accelerateKeys are the fields of Accelerate's cluster configuration, and those of older releases.
var accelerateKeys = strings.Fields(`compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank num_machines gpu_ids
	main_process_ip main_process_port rdzv_backend same_network main_training_function enable_cpu_affinity fp8_config deepspeed_config fsdp_config
	parallelism_config megatron_lm_config mpirun_config ipex_config downcast_bf16 tpu_name tpu_zone tpu_use_cluster tpu_use_sudo command_file commands
	tpu_vm tpu_env dynamo_config dynamo_backend fp16 tpu_cluster deepspeed_hostfile use_xpu`)

// zeroKeys are DeepSpeed's of ZeRO, with the names of older releases.
var zeroKeys = strings.Fields(`stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce allgather_partitions
	allgather_bucket_size overlap_comm load_from_fp32_weights elastic_checkpoint offload_param offload_optimizer zenflow sub_group_size cpu_offload_param
	cpu_offload_params cpu_offload_use_pin_memory cpu_offload prefetch_bucket_size param_persistence_threshold model_persistence_threshold
	max_live_parameters max_reuse_distance gather_16bit_weights_on_model_save module_granularity_threshold use_all_reduce_for_fetch_params
	allgather_sequential stage3_prefetch_bucket_size stage3_param_persistence_threshold stage3_model_persistence_threshold stage3_max_live_parameters
	stage3_max_reuse_distance stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save stage3_module_granularity_threshold
	stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential ignore_unused_parameters legacy_stage1 round_robin_gradients
	zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients zeropp_loco_param mics_shard_size
	mics_hierarchical_params_gather memory_efficient_linear pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings
	enable_sanity_checks save_muon_momentum_buffer_in_memory leaf_module find_unused_parameters grad_hooks`)

// titanKeys are torchtitan's by section, in any release that reads TOML.
var titanKeys = map[string][]string{
	"training": strings.Fields(`batch_size compile data_parallel_degree data_parallel_replicate_degree data_parallel_shard_degree data_parallel_type dataloader
		dataset dataset_path debug_moe_force_load_balance deterministic disable_loss_parallel dtype enable_cpu_offload enable_float8_linear
		enable_fsdp_float8_all_gather enable_loss_parallel float8_scaling_type_grad_output float8_scaling_type_input float8_scaling_type_weight fp8_linear
		fsdp_reshard_after_forward gc_debug gc_freq global_batch_size local_batch_size max_norm mixed_precision_param mixed_precision_reduce
		pipeline_parallel_degree precompute_float8_dynamic_scale_for_fsdp seed seq_len steps tensor_parallel_degree warmup_steps`),
	"parallelism": strings.Fields(`collective_api context_parallel_degree context_parallel_load_balancer context_parallel_rotate_method
		data_parallel_replicate_degree data_parallel_shard_degree disable_loss_parallel enable_async_tensor_parallel enable_compiled_autograd
		expert_parallel_comm_backend expert_parallel_degree expert_tensor_parallel_degree fsdp_reshard_after_forward module_fqns_per_model_part
		pipeline_parallel_degree pipeline_parallel_expert_parallel_overlap pipeline_parallel_first_stage_less_layers
		pipeline_parallel_last_stage_less_layers pipeline_parallel_layers_per_stage pipeline_parallel_microbatch_size pipeline_parallel_microbatches
		pipeline_parallel_schedule pipeline_parallel_schedule_csv pipeline_parallel_split_points tensor_parallel_degree`),
}

"""The shapes of request bodies as text: Converse's from AWS's model, the families' by hand.

A line at the margin names a shape; its members follow. ``Name : a b`` is an object with these
members. ``Name | a b`` has exactly one of them. In ``Name # a=X b=Y`` the object's ``type`` names
its shape; a date at the end of the type is ignored, and ``-`` is for objects without a type.

A bare member is a scalar. ``a=X`` has a shape, ``a=[X]`` is a list, ``a=~X`` and ``a=~[X]`` may
also be text, and ``a={}`` is free JSON without pictures.
"""

from __future__ import annotations

from typing import Final

CONVERSE: Final = """
AnyToolChoice :
AudioBlock : format source=AudioSource error=ErrorBlock
AudioSource | bytes s3Location=S3Location
AutoToolChoice :
CachePointBlock : type ttl
Citation : title source sourceContent=[CitationSourceContent] location=CitationLocation
CitationGeneratedContent | text
CitationLocation | web=WebLocation documentChar=DocumentCharLocation
    documentPage=DocumentPageLocation documentChunk=DocumentChunkLocation
    searchResultLocation=SearchResultLocation
CitationSourceContent | text
CitationsConfig : enabled
CitationsContentBlock : content=[CitationGeneratedContent] citations=[Citation]
ContentBlock | text image=ImageBlock document=DocumentBlock video=VideoBlock audio=AudioBlock
    toolUse=ToolUseBlock toolResult=ToolResultBlock guardContent=GuardrailConverseContentBlock
    cachePoint=CachePointBlock reasoningContent=ReasoningContentBlock
    citationsContent=CitationsContentBlock searchResult=SearchResultBlock
    toolAddition=ToolAdditionBlock toolRemoval=ToolRemovalBlock
ConverseRequest : messages=[Message] system=[SystemContentBlock]
    inferenceConfig=InferenceConfiguration toolConfig=ToolConfiguration
    guardrailConfig=GuardrailConfiguration additionalModelRequestFields={}
    promptVariables={} additionalModelResponseFieldPaths=[] requestMetadata={}
    performanceConfig=PerformanceConfiguration serviceTier=ServiceTier outputConfig=OutputConfig
DocumentBlock : format name source=DocumentSource context citations=CitationsConfig
DocumentCharLocation : documentIndex start end
DocumentChunkLocation : documentIndex start end
DocumentContentBlock | text
DocumentPageLocation : documentIndex start end
DocumentSource | bytes s3Location=S3Location text content=[DocumentContentBlock]
ErrorBlock : message
GuardrailConfiguration : guardrailIdentifier guardrailVersion trace streamProcessingMode
GuardrailConverseContentBlock | text=GuardrailConverseTextBlock image=GuardrailConverseImageBlock
GuardrailConverseImageBlock : format source=GuardrailConverseImageSource
GuardrailConverseImageSource | bytes
GuardrailConverseTextBlock : text qualifiers=[]
ImageBlock : format source=ImageSource error=ErrorBlock
ImageSource | bytes s3Location=S3Location
InferenceConfiguration : maxTokens temperature topP stopSequences=[]
JsonSchemaDefinition : schema name description
Message : role content=[ContentBlock]
OutputConfig : textFormat=OutputFormat effort
OutputFormat : type structure=OutputFormatStructure
OutputFormatStructure | jsonSchema=JsonSchemaDefinition
PerformanceConfiguration : latency
ReasoningContentBlock | reasoningText=ReasoningTextBlock redactedContent
ReasoningTextBlock : text signature
S3Location : uri bucketOwner
SearchResultBlock : source title content=[SearchResultContentBlock] citations=CitationsConfig
SearchResultContentBlock : text
SearchResultLocation : searchResultIndex start end
ServiceTier : type
SpecificToolChoice : name
SystemContentBlock | text guardContent=GuardrailConverseContentBlock cachePoint=CachePointBlock
SystemTool : name
Tool | toolSpec=ToolSpecification systemTool=SystemTool cachePoint=CachePointBlock
ToolAdditionBlock : tool=ToolReference
ToolChoice | auto=AutoToolChoice any=AnyToolChoice tool=SpecificToolChoice
ToolConfiguration : tools=[Tool] toolChoice=ToolChoice
ToolInputSchema | json={}
ToolReference : type name serverName
ToolRemovalBlock : tool=ToolReference
ToolResultBlock : toolUseId content=[ToolResultContentBlock] status type
ToolResultContentBlock | json={} text image=ImageBlock document=DocumentBlock video=VideoBlock
    searchResult=SearchResultBlock
ToolSpecification : name description inputSchema=ToolInputSchema strict
ToolUseBlock : toolUseId name input={} type
VideoBlock : format source=VideoSource
VideoSource | bytes s3Location=S3Location
WebLocation : url domain
"""
"""The output of ``tools/converse_model.py``. A test compares it with botocore's model."""

FAMILIES: Final = """
AdditionalFields : top_k topK k p min_p thinking={} anthropic_beta={} reasoning_config={}
    reasoningConfig={} reasoning_effort inferenceConfig={} textGenerationConfig={} output_config={}
    tools=[AnthropicTool] tool_choice={} stop_sequences={} repetition_penalty frequency_penalty
    presence_penalty seed random_seed logit_bias={} safe_prompt context_management={}
    enable_thinking chat_template_kwargs={} response_format={} verbosity effort service_tier
    serviceTier={} n num_generations best_of numResults candidate_count speed inference_geo
AnthropicBlock # text=AnthropicText image=AnthropicImage document=AnthropicDocument
    tool_use=AnthropicToolUse tool_result=AnthropicToolResult thinking=AnthropicThinking
    redacted_thinking=AnthropicThinking search_result=AnthropicSearchResult
AnthropicBytes : type media_type data
AnthropicCache : type ttl
AnthropicContent : type content=~[AnthropicResultBlock]
AnthropicCustomTool : type name description input_schema={} cache_control=AnthropicCache strict
    eager_input_streaming defer_loading allowed_callers={} input_examples={}
AnthropicDocument : type source=AnthropicDocumentSource title context citations={}
    cache_control=AnthropicCache
AnthropicDocumentBytes : type media_type data
AnthropicDocumentSource # base64=AnthropicDocumentBytes text=AnthropicDocumentBytes
    content=AnthropicContent
AnthropicFile : type file_id
AnthropicImage : type source=AnthropicImageSource cache_control=AnthropicCache
AnthropicImageSource # base64=AnthropicBytes url=AnthropicUrl file=AnthropicFile
AnthropicMessage : role content=~[AnthropicBlock]
AnthropicOwnTool : type name cache_control=AnthropicCache display_width_px display_height_px
    display_number enable_zoom max_characters strict defer_loading allowed_callers={}
    input_examples={}
AnthropicRequest : anthropic_version anthropic_beta={} model messages=[AnthropicMessage]
    system=~[AnthropicBlock] metadata={} stop_sequences={} stream temperature top_k top_p
    tools=[AnthropicTool] tool_choice={} thinking={} output_config={} output_format={} service_tier
    context_management={} cache_control=AnthropicCache inference_geo speed
AnthropicResultBlock # text=AnthropicText image=AnthropicImage document=AnthropicDocument
    search_result=AnthropicSearchResult tool_reference=AnthropicToolReference
AnthropicSearchResult : type source title content=[AnthropicBlock] citations={}
    cache_control=AnthropicCache
AnthropicText : type text citations={} cache_control=AnthropicCache
AnthropicThinking : type thinking signature data
AnthropicTool # -=AnthropicCustomTool custom=AnthropicCustomTool bash=AnthropicOwnTool
    text_editor=AnthropicOwnTool computer=AnthropicOwnTool memory=AnthropicOwnTool
    tool_search_tool_regex=AnthropicOwnTool tool_search_tool_bm25=AnthropicOwnTool
    function=OpenAIFunction
AnthropicToolReference : type tool_name
AnthropicToolResult : type tool_use_id content=~[AnthropicResultBlock] is_error
    cache_control=AnthropicCache
AnthropicToolUse : type id name input={} cache_control=AnthropicCache caller={}
AnthropicUrl : type url
CohereRequest : message chat_history={} documents={} tools={} tool_results={} preamble temperature
    p k seed stop_sequences={} search_queries_only return_prompt raw_prompting prompt_truncation
    frequency_penalty presence_penalty prompt num_generations return_likelihoods stream
    logit_bias={} truncate texts={} input_type embedding_types={} output_dimension query top_n
    api_version rank_fields={} return_documents max_chunks_per_doc max_tokens_per_doc
    messages=[OpenAIMessage] response_format={} safety_mode force_single_step citation_quality
LlamaRequest : prompt images={} temperature top_p
NovaRequest : schemaVersion messages=[Message] system=[SystemContentBlock] inferenceConfig={}
    toolConfig=ToolConfiguration reasoningConfig={} requestMetadata={}
OpenAICall : id type index function={}
OpenAIFunction : type function={}
OpenAIImage : type image_url=~OpenAIImageUrl
OpenAIImageUrl : url detail
OpenAIInput : type input_audio=OpenAISound
OpenAIMessage : role content=~[OpenAIPart] name tool_calls=[OpenAICall] tool_call_id refusal
    function_call={} reasoning_content reasoning
OpenAIPart # text=OpenAIText image_url=OpenAIImage input_audio=OpenAIInput refusal=OpenAIText
OpenAIRequest : model messages=[OpenAIMessage] prompt temperature top_p top_k min_p n best_of
    stop={} stream stream_options={} presence_penalty frequency_penalty repetition_penalty
    logit_bias={} logprobs top_logprobs user seed random_seed safe_prompt tools=[OpenAITool]
    tool_choice={} parallel_tool_calls functions={} function_call={} response_format={}
    service_tier reasoning_effort metadata={} store verbosity safety_identifier prompt_cache_key
    prompt_cache_retention
OpenAISound : data format
OpenAIText : type text refusal
OpenAITool # function=OpenAIFunction
TitanRequest : inputText textGenerationConfig={} dimensions normalize embeddingTypes={}
    embeddingConfig={}
"""
"""The members that models read. An unknown one may make a model read anything, so it reserves the
whole window."""

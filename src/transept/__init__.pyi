"""Written by `python -m tests.public`; both the runtime index of public names and what editors see."""

from transept.auto import AutoConfig as AutoConfig, AutoModel as AutoModel, AutoModelForAudioClassification as AutoModelForAudioClassification, AutoModelForAudioFrameClassification as AutoModelForAudioFrameClassification, AutoModelForAudioXVector as AutoModelForAudioXVector, AutoModelForCTC as AutoModelForCTC, AutoModelForCausalLM as AutoModelForCausalLM, AutoModelForImageClassification as AutoModelForImageClassification, AutoModelForMaskedImageModeling as AutoModelForMaskedImageModeling, AutoModelForMaskedLM as AutoModelForMaskedLM, AutoModelForMultipleChoice as AutoModelForMultipleChoice, AutoModelForNextSentencePrediction as AutoModelForNextSentencePrediction, AutoModelForPreTraining as AutoModelForPreTraining, AutoModelForQuestionAnswering as AutoModelForQuestionAnswering, AutoModelForSequenceClassification as AutoModelForSequenceClassification, AutoModelForTokenClassification as AutoModelForTokenClassification, config_class as config_class, read_config as read_config
from transept.backbone import Backbone as Backbone, Model as Model, Options as Options, TaskModel as TaskModel, TextInputs as TextInputs
from transept.config import Config as Config, RotaryConfig as RotaryConfig
from transept.errors import CheckpointError as CheckpointError, ConfigError as ConfigError, FileError as FileError, FormatError as FormatError, InputError as InputError, InputTypeError as InputTypeError, MissingExtraError as MissingExtraError, TranseptError as TranseptError, TranseptWarning as TranseptWarning, UnsupportedError as UnsupportedError, nearest as nearest
from transept.layers.cache import Cache as Cache, DynamicCache as DynamicCache
from transept.layers.mlp import apply_chunking_to_forward as apply_chunking_to_forward
from transept.models.bert import BertConfig as BertConfig, BertForMaskedLM as BertForMaskedLM, BertForMultipleChoice as BertForMultipleChoice, BertForNextSentencePrediction as BertForNextSentencePrediction, BertForPreTraining as BertForPreTraining, BertForQuestionAnswering as BertForQuestionAnswering, BertForSequenceClassification as BertForSequenceClassification, BertForTokenClassification as BertForTokenClassification, BertLMHeadModel as BertLMHeadModel, BertModel as BertModel
from transept.objectives.terms import LossTerm as LossTerm
from transept.outputs import BackboneOutput as BackboneOutput, LogitsOutput as LogitsOutput, ModelOutput as ModelOutput, PreTrainingOutput as PreTrainingOutput, QuestionAnsweringOutput as QuestionAnsweringOutput
from transept.pipelines import pipeline as pipeline
from transept.preprocess.audio.auto import AutoFeatureExtractor as AutoFeatureExtractor
from transept.preprocess.audio.ctc_tokenizer import Wav2Vec2CTCTokenizer as Wav2Vec2CTCTokenizer
from transept.preprocess.audio.wav2vec2 import Wav2Vec2FeatureExtractor as Wav2Vec2FeatureExtractor
from transept.preprocess.features import BatchFeature as BatchFeature
from transept.preprocess.image.auto import AutoImageProcessor as AutoImageProcessor
from transept.preprocess.image.vit import ViTImageProcessor as ViTImageProcessor, ViTImageProcessorFast as ViTImageProcessorFast
from transept.preprocess.processor import AutoProcessor as AutoProcessor, Wav2Vec2Processor as Wav2Vec2Processor
from transept.preprocess.text.auto import AutoTokenizer as AutoTokenizer
from transept.preprocess.text.encoding import BatchEncoding as BatchEncoding

__version__: str
